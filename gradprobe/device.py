"""Whether this process still has its GPU. After an illegal or misaligned access or an assertion, every call fails."""

from __future__ import annotations

import sys


def words_of_loss() -> str | None:
    """The device's error in one line, where this process has lost it; None where it works or was never used.

    An exception alone does not tell. A library may replace CUDA's message or go on as if nothing had happened, and a
    failed launch may leave the device as it was. So the device itself is asked.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except Exception as error:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return None
