"""Adaptations: changes of a case that are tried on a target that refuses it or reads its tensors otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..cases.case import Case, ranked
from ..cases.shapes import in_words, missing
from ..options import flags
from ..targets.find import Target

# Many kernels take powers of two alone; many take no length that ends inside a block, of up to 128.
_HEAD_DIMS = (32, 64, 128)
WHOLE_BLOCKS = 128
_ORDERS = ("bhld", "blhd", "hld", "lhd")
# The axes that a bias and a mask may have, and how many of them a target's own has.
_BIASES = (("hmn", 3), ("mn", 2), ("bhmn", 4), ("bmn", 3), ("mn", 4))
_MASKS = (("bmn", 3), ("mn", 2), ("bmn", 4), ("hmn", 3), ("mn", 4))
_PADDINGS = (("bn", 2), ("bn", 3))
OF_LENGTH = ("seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens", "cu_seqlens_k")


@dataclass(frozen=True)
class Adaptation:
    """A change of options that nobody gave."""

    options: Mapping[str, Any]
    """As words of the command line hold them."""
    about: str
    """What of the case was refused, "head dim 24"; or what the target takes it for."""

    @property
    def flags(self) -> str:
        """As the command line gives them."""
        return " ".join(flags(self.options))


def of_a_refusal(case: Case, target: Target, given: Collection[str]) -> Iterator[Adaptation]:
    """Changes that may make a target run that raised, in the order in which they are tried.

    Args:
        given: the names of the options that the user gave, none of which is changed.
    """
    for adaptation in _of_a_refusal(case, target, given):
        if not adaptation.options.keys() & set(given):
            yield adaptation


def _of_a_refusal(case: Case, target: Target, given: Collection[str]) -> Iterator[Adaptation]:
    yield from _of_a_rank(case, given)
    for size in _HEAD_DIMS:
        yield Adaptation({"head_dim": size}, f"head dim {case.head_dim}")
    if case.dtype == "float32":
        yield Adaptation({"dtype": "float16"}, "float32")
    if not set(OF_LENGTH) & set(given):
        for length in (WHOLE_BLOCKS, 2 * WHOLE_BLOCKS):
            yield Adaptation({"seqlen": length}, f"length {case.seqlen_q}")
    if case.device == "cpu":
        yield Adaptation({"as_cuda": True}, "tensors on the CPU")
    if "causal" in target.takes and not case.causal:
        yield Adaptation({"causal": True}, "no causal mask")
    for shapes in ("hld", "lhd", "blhd"):
        yield Adaptation({"shapes": shapes}, in_words(case.shapes))


def _of_a_rank(case: Case, given: Collection[str]) -> Iterator[Adaptation]:
    """Other axes and ranks of the bias and the mask; options that were given are not changed."""
    masks = _PADDINGS if case.mask == "padding" else _MASKS
    known = {"bias": _BIASES if case.bias and case.family == "softmax" else (), "mask": masks if case.mask else ()}
    for name, forms in known.items():
        for axes, rank in forms:
            new = {f"{name}_axes": axes, f"{name}_rank": rank}
            options = {option: word for option, word in new.items() if word != getattr(case, option)}
            if options and not options.keys() & set(given):
                yield Adaptation(options, given_as(name, case))


def given_as(name: str, case: Case) -> str:
    """A bias or a mask with the shape that the target is given, "bias of shape [3, 72, 72]"."""
    axes, rank = ranked(name, case) or ("", 0)
    return f"{name} of shape {[case.size(axes[at]) for at in range(len(axes)) if at not in missing(axes, rank)]}"


def of_a_reading(case: Case, target: Target, given: Collection[str]) -> Iterator[Adaptation]:
    """Other ways in which a target may read the tensors of a case, where its parameters do not say."""
    alike = [shapes for shapes in _ORDERS if len(shapes) == len(case.shapes) and shapes != case.shapes]
    # On a GPU a kernel that takes heads for rows may leave its memory, and the process its device.
    shapes = [case.shapes, *([] if "shapes" in given or case.device == "cuda" else alike)]
    told = "causal" in target.takes or {"causal", "implied"} & set(given) or case.family != "softmax"
    for order in shapes:
        for causal in [False] if told else [False, True]:
            options = ({"shapes": order} if order != case.shapes else {}) | ({"implied": "causal"} if causal else {})
            words = [f"q, k and v are {in_words(order)}"] if order != case.shapes else []
            words += ["it is always causal"] if causal else []
            if options:
                yield Adaptation(options, " and ".join(words))
    for adaptation in _of_a_rank(case, given):
        # Other axes would make a kernel right that takes one head's for all.
        if not adaptation.options.keys() & {"bias_axes", "mask_axes"}:
            yield replace(adaptation, about=f"{adaptation.about} is taken for another")
