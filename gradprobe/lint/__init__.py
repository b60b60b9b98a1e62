"""Strides of kernels, judged by names alone."""
