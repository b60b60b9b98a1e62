"""Attention kernels in Triton; each file needs torch and triton only."""
