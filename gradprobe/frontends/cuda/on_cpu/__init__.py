"""CUDA kernels on a CPU: the same source, compiled behind a header, one fiber a thread, every access watched."""
