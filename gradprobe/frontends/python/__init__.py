"""Plain Python, and kernels in Python."""
