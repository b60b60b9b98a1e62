"""What the names of kernels say of what they compute."""

from __future__ import annotations

import re

_GRADIENTS = re.compile(r"(?:dbias|dsink|dtau|delta|lse|dq|dk|dv|dp|ds)+")


def is_named_after(kernel: str, intermediate: str) -> bool:
    """Whether a kernel's name says that it computes a gradient: `lazy_dkdv_kernel` dK and dV, and no other.

    A word of the name must be names of gradients and nothing else, so that no letter inside another word counts.
    """
    name = intermediate.lower()
    words = [word for word in re.split(r"[^a-z]+", kernel.lower()) if _GRADIENTS.fullmatch(word)]
    return any(name in re.findall(r"dbias|dsink|dtau|delta|lse|dq|dk|dv|dp|ds", word) for word in words)
