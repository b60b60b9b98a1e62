"""Attempts to get past the gate: words, configurations and files that nobody means, and right kernels of every kind."""
