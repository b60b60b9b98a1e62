"""CUDA C++ kernels as functions: on a GPU by NVRTC, without one on the CPU, where every access of memory is watched.

module = gradprobe.cuda.load("my.cu", defines={"BLOCK_M": 32})
module.my_kernel(grid, block, shared_bytes, q, k, 1.0, 128)
"""

from .frontends.cuda.module import Kernel, Module, load

__all__ = ["Kernel", "Module", "load"]
