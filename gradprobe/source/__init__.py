"""The source of kernels, and edits of it."""
