"""Triton: its kernels compiled, or interpreted on the CPU."""

import os


def interpreting() -> bool:
    """Whether Triton's interpreter runs the kernels of this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"
