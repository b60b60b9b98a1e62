"""S1: a gradient is stored with another tensor's strides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ..model.intermediates import title
from .hypothesis import Hypothesis, Observed
from .memory import GRADIENTS, axes_of, contiguous_strides, in_words, offsets, whole_storage, with_strides_of, word
from .variant import Alter, finishing

# Elements of a storage that is copied to see what stores leave in it.
_LARGEST = 1 << 24


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Every gradient that was handed in to be written, with each other tensor's strides; and as if contiguous."""
    for name, gradient in GRADIENTS.items():
        if name in seen.tensors and gradient in seen.own and len(whole_storage(seen.tensors[name])) <= _LARGEST:
            tensor, tried = seen.tensors[name], {seen.tensors[name].stride()}
            for fault, fault_class, words, axes, other, strides in _ways(seen, name):
                if strides not in tried:
                    tried.add(strides)
                    yield Hypothesis(
                        fault, fault_class, f"{gradient} is stored {words}", _misplaced(gradient, tensor, strides),
                        frozenset({gradient}), tensor=name, axes=axes, other=other, not_finite=True,
                    )  # fmt: skip


def _ways(seen: Observed, name: str) -> Iterator[tuple[str, str, str, str, str, tuple[int, ...]]]:
    own, lay = axes_of(name, seen), {other: tensor.stride() for other, tensor in seen.tensors.items()}
    for axes, other, strides in with_strides_of(seen, name, lay[name], lay):
        words = f"with {title(other)}'s {in_words(axes)} stride"
        yield f"store/{word(name, axes, own)}", "S1", words, axes, other, strides
    contiguous = contiguous_strides(seen.tensors[name].shape)
    yield f"layout/{name}", "S2", "as if it were contiguous", own, "", contiguous


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
