"""Other people's attention kernels, and those in CUDA C++, as functions with this project's parameter names."""
