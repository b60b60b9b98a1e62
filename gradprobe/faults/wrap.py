"""I64: offsets that wrap around at 2^31."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from torch import Tensor

from ..model.intermediates import KINDS, title
from .hypothesis import EVERYTHING, Hypothesis, Observed, entered
from .memory import GRADIENTS, axes_of, offsets, readable, reading, whole_storage
from .variant import Variant, finishing

_LIMIT = 2**31
# Which axes' terms one expression adds up, in 32 bits, before the sum is added to a pointer.
_GROUPS = (("bhmd",), ("bh", "md"), ("b", "h", "m"), ("bh",), ("h",), ("m",), ("md",), ("b",))
_FIX = "widen the index before it is multiplied: .to(tl.int64)"


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Every tensor whose offsets pass 2^31, alone and all of them, with those of some axes in 32 bits."""
    tensors = {name: tensor for name, tensor in readable(seen).items() if _reach(tensor) >= _LIMIT}
    for groups in _GROUPS:
        for name, tensor in tensors.items():
            yield _read(seen, {name: tensor}, groups)
        if len(tensors) > 1:
            yield _read(seen, tensors, groups)
        for name, gradient in GRADIENTS.items():
            if name in seen.tensors and gradient in seen.own and _reach(seen.tensors[name]) >= _LIMIT:
                yield _stored(seen, name, gradient, groups)


def _reach(tensor: Tensor) -> int:
    return sum((size - 1) * abs(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _read(seen: Observed, tensors: Mapping[str, Tensor], groups: Sequence[str]) -> Hypothesis:
    names = [title(name) for name in tensors]
    changes = entered(next(iter(tensors)), seen.case.family) if len(tensors) == 1 else EVERYTHING
    summary, first = f"offsets into {', '.join(names)} wrap around at 2^31: they are 32 bits wide", next(iter(tensors))
    alter = partial(_misread, seen, tensors, groups)
    return Hypothesis(f"wrap/{first}", "I64", summary, alter, changes, fix=_FIX, tensor=first)


def _misread(seen: Observed, tensors: Mapping[str, Tensor], groups: Sequence[str], variant: Variant) -> Variant:
    for name, tensor in tensors.items():
        at = _wrapped(tensor, axes_of(name, seen), groups) + int(tensor.storage_offset())
        flat = whole_storage(tensor)
        variant = reading(name, flat[at.to(tensor.device).clamp(0, len(flat) - 1)])(variant)
    return variant


def _wrapped(tensor: Tensor, axes: str, groups: Sequence[str]) -> Tensor:
    """How far each element is taken to lie from the first, when each group's terms are added up in 32 bits."""
    total, left = offsets(tensor.shape, [0] * tensor.dim()), list(tensor.stride())
    for group in groups:
        own = [step if KINDS.get(axis, "?") in group else 0 for axis, step in zip(axes, tensor.stride(), strict=True)]
        left = [0 if taken else step for taken, step in zip(own, left, strict=True)]
        total = total + (offsets(tensor.shape, own) + _LIMIT) % (2 * _LIMIT) - _LIMIT
    return total + offsets(tensor.shape, left)


def _stored(seen: Observed, name: str, gradient: str, groups: Sequence[str]) -> Hypothesis:
    tensor = seen.tensors[name]
    elsewhere = _wrapped(tensor, axes_of(name, seen), groups) != offsets(tensor.shape, tensor.stride())

    def finish(values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What the memory held before, where the gradient was stored elsewhere."""
        before = tensor.double().to(values[gradient].device)
        return {gradient: values[gradient].where(~elsewhere.to(before.device), before)}

    summary, changes = f"offsets into {gradient} wrap around at 2^31: they are 32 bits wide", frozenset({gradient})
    alter = finishing(finish)
    return Hypothesis(f"wrap/{name}", "I64", summary, alter, changes, fix=_FIX, tensor=name, not_finite=True)
