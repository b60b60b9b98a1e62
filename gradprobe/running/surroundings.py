"""The state of torch in which a check runs inside somebody else's process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def ordinary_torch() -> Iterator[None]:
    """While open, torch is as in a new process. Afterwards its state is as before.

    Gradients are recorded, autocast is off, and tensors are float32 and on the CPU by default. The number of threads,
    which a check may lower, is restored.
    """
    import torch

    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":  # a mode that every call of torch passes through
            stack.enter_context(torch.device("cpu"))
        yield
