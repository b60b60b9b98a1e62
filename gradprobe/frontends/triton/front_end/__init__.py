"""What Triton's own front end says of the kernels that the interpreter ran: it compiles to TTIR without a GPU.

Only `language` and `lowering` import triton.
"""

from .calls import Calls, KernelCall, described_call

__all__ = ["Calls", "KernelCall", "described_call"]
