"""CUDA kernels on a CPU: the same source, compiled behind a header, one fiber a thread, every access watched."""

from .host import Python, call_host
from .launch import launch

__all__ = ["Python", "call_host", "launch"]
