"""The source of kernels: Python and CUDA C++ as syntax trees, and edits of their text."""
