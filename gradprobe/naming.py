"""What the name of a kernel says about its results."""

from __future__ import annotations

import re

_GRADIENTS = re.compile(r"(?:dbias|dsink|dtau|delta|lse|dq|dk|dv|dp|ds)+")


def is_named_after(kernel: str, intermediate: str) -> bool:
    """Whether a kernel's name says that it computes a gradient: `lazy_dkdv_kernel` computes dK and dV, and no other.

    Only words made up entirely of names of gradients count, and no letters inside other words.
    """
    name = intermediate.lower()
    words = [word for word in re.split(r"[^a-z]+", kernel.lower()) if _GRADIENTS.fullmatch(word)]
    return any(name in re.findall(r"dbias|dsink|dtau|delta|lse|dq|dk|dv|dp|ds", word) for word in words)
