"""S1: a gradient is stored with another tensor's strides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .hypothesis import Hypothesis, Seen, title
from .memory import KINDS, axes_of, by_kind, contiguous_strides, in_words, offsets, whole_storage, word
from .variant import Alter, finishing

_GRADIENTS = {"dq": "dQ", "dk": "dK", "dv": "dV"}
# Elements of a storage that is copied to see what stores leave in it.
_LARGEST = 1 << 24
_SETS = ("b", "h", "m", "d", "bh", "md", "bhm", "bhmd")


def hypotheses(seen: Seen) -> Iterator[Hypothesis]:
    """Every gradient that was handed in to be written, with each other tensor's strides; and as if contiguous."""
    for name, gradient in _GRADIENTS.items():
        if name in seen.tensors and gradient in seen.own and len(whole_storage(seen.tensors[name])) <= _LARGEST:
            tensor, tried = seen.tensors[name], {seen.tensors[name].stride()}
            for fault, fault_class, words, axes, other, strides in _ways(seen, name):
                if strides not in tried:
                    tried.add(strides)
                    summary, alter = f"{gradient} is stored {words}", _misplaced(gradient, tensor, strides)
                    yield Hypothesis(
                        fault, fault_class, summary, alter, frozenset({gradient}), tensor=name, axes=axes, other=other,
                        not_finite=True,
                    )  # fmt: skip


def _ways(seen: Seen, name: str) -> Iterator[tuple[str, str, str, str, str, tuple[int, ...]]]:
    own, tensor = axes_of(name, seen), seen.tensors[name]
    for kinds in _SETS:
        axes = "".join(axis for axis in own if KINDS.get(axis, "?") in kinds)
        for other, theirs in seen.tensors.items():
            named = by_kind(axes_of(other, seen), theirs.stride()) if axes_of(other, seen) else {}
            if other == name or not set(kinds) <= named.keys():
                continue
            pairs = zip(own, tensor.stride(), strict=True)
            strides = tuple(named[KINDS[axis]] if axis in axes else mine for axis, mine in pairs)
            words = f"with {title(other)}'s {in_words(axes)} stride"
            yield f"store/{word(name, axes, own)}", "S1", words, axes, other, strides
    yield f"layout/{name}", "S2", "as if it were contiguous", own, "", contiguous_strides(tensor.shape)


def _misplaced(gradient: str, tensor: Tensor, strides: tuple[int, ...]) -> Alter:
    def finish(values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What is found at a gradient's own places once all of it was stored at others."""
        if gradient not in values:
            return {}
        flat, first = whole_storage(tensor), int(tensor.storage_offset())
        own = (offsets(tensor.shape, tensor.stride()) + first).to(tensor.device)
        at = (offsets(tensor.shape, strides) + first).to(tensor.device).flatten()
        inside = (at >= 0) & (at < len(flat))
        # Of a storage of gigabytes only the elements that are stored to or looked at are held in float64.
        touched = torch.cat((own.flatten(), at[inside])).unique()
        held = flat[touched].double()
        held[torch.searchsorted(touched, at[inside])] = values[gradient].flatten()[inside]
        return {gradient: held[torch.searchsorted(touched, own)]}

    return finishing(finish)
