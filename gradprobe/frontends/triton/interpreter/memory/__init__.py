"""What kernels do in Triton's interpreter, and what watches their memory in it."""
