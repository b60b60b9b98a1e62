"""Whether this process still has its GPU: after an illegal or misaligned access, or an assertion, every call fails."""

from __future__ import annotations

import sys


def words_of_loss() -> str | None:
    """What the device says, in one line, where this process has lost it; None where it answers, or was never used.

    Asked and not guessed from an exception: a library may put its own words in the place of CUDA's, or go on as if
    nothing had happened, and an error such as a launch that does not fit leaves the device as it was.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except Exception as error:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return None
