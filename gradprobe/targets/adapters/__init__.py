"""Other people's kernels, and those in CUDA C++."""
