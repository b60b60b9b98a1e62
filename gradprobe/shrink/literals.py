"""Tensors as Python source that makes the very same bits."""

from __future__ import annotations

import base64
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# Numbers of all tensors of a program together from which they are written as bytes.
MOST_NUMBERS = 4096
_WIDTH = 112


def literal(tensor: Tensor, *, as_bytes: bool) -> str:
    """An expression that makes a contiguous tensor on the CPU: its numbers, or where they are many its bytes."""
    tensor, kind = tensor.detach().cpu().contiguous(), str(tensor.dtype)
    first = tensor.flatten()[0] if tensor.numel() else tensor.new_zeros(())
    if bool(((tensor == first) | ((tensor != tensor) & (first != first))).all()):
        return f"torch.full({list(tensor.shape)}, {_number(first.item(), tensor)}, dtype={kind})"
    if as_bytes:
        return _bytes(tensor, kind)
    return f"torch.tensor({_nested(tensor.tolist(), tensor)}, dtype={kind})"


def _nested(numbers: Any, tensor: Tensor) -> str:
    if isinstance(numbers, list):
        return f"[{', '.join(_nested(one, tensor) for one in numbers)}]"
    return _number(numbers, tensor)


def _number(number: Any, tensor: Tensor) -> str:
    """The shortest decimal that is this number in the tensor's dtype."""
    if not isinstance(number, float):
        return repr(number)
    if number != number or abs(number) == float("inf"):
        return f'float("{number}")'
    shortened = (f"{number:.{digits}g}" for digits in range(2, 17))
    return next((text for text in shortened if tensor.new_tensor(float(text)).item() == number), repr(number))


def _bytes(tensor: Tensor, kind: str) -> str:
    import torch

    raw = tensor.flatten().view(torch.uint8).numpy().tobytes()
    lines = textwrap.wrap(base64.b64encode(raw).decode(), _WIDTH)
    text = "\n".join(f'    "{line}"' for line in lines)
    return f"of_bytes((\n{text}\n), {list(tensor.shape)}, {kind})"
