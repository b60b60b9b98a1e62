"""CUDA kernels on a CPU, one fiber a thread."""
