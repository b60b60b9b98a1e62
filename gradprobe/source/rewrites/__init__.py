"""What people get wrong in kernels."""
