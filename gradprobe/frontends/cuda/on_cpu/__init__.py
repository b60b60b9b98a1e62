"""CUDA kernels on a CPU: one fiber a thread, every access watched."""
