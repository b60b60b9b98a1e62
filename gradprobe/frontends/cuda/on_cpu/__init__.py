"""CUDA kernels on a CPU: the same source, compiled behind a header, one fiber a thread, every access watched."""

from .host_call import HostCall
from .launch import run
from .library import library_of

__all__ = ["HostCall", "library_of", "run"]
