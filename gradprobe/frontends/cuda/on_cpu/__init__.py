"""CUDA kernels on a CPU: compiled behind a header, one fiber a thread, every access watched."""
