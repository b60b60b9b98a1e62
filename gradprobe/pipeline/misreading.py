"""Whether O is wrong because a file's inputs were misread: they are [B, L, H, D], or the problem is causal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..inputs.saved import Saved
from ..model.failures import TargetFailure
from ..model.mechanisms import door
from ..numerics.evidence import Measured
from ..reference import Attention, Tile, evaluate
from ..targets.find import Target

if TYPE_CHECKING:
    from torch import Tensor

# O of another reading differs by about its own size; the roundings of 16-bit kernels by a hundredth of it.
_ALIKE = 0.02
_MOST_HEADS = 2


@door("misreading")
def refuse_misreading(measured: Measured | None, saved: Saved, target: Target) -> None:
    """Does nothing where O is right as the inputs were read, or wrong however they are read.

    Args:
        measured: the first run that is wrong, by its own results; None where there is none.

    Raises:
        TargetFailure: O is wrong as the inputs were read, and right as they may be read as well.
    """
    # q, k, v and do must be all there is, so that their axes may be swapped.
    others = ("bias", "seqlens", "mask", "alibi", "sinks", "keep", "cu_seqlens_q", "tau")
    if measured is None or "o" in saved.values or any(getattr(measured.x, name) is not None for name in others):
        return
    if "O" not in measured.trace.values or not measured.comparison.findings["O"].mismatched:
        return
    o = measured.trace.values["O"]
    for x, came, words, way_out in _readings(measured.x, o, target.takes.keys()):
        if _agrees(x, came):
            message = f"O of target {target.name!r} is wrong as its inputs were read, and right {words}"
            raise TargetFailure(message, way_out)


def _readings(x: Attention, o: Tensor, takes: Collection[str]) -> Iterator[tuple[Attention, Tensor, str, str]]:
    """(problem, O, in words, the way out). What the target is told stays as it is."""
    turned = {name: getattr(x, name).transpose(1, 2) for name in ("q", "k", "v", "do")}
    for scale in [x.scale] if "scale" in takes else [x.scale, 1.0]:
        for causal in [x.causal] if "causal" in takes else [False, True]:
            changed = (["causal"] if causal != x.causal else []) + (["scale"] if scale != x.scale else [])
            if changed:
                words = f"where it is {'causal' if causal else 'not causal'} with scale {scale:g}"
                given = f"--implied {','.join(changed)}" + (f" --scale {scale:g}" if "scale" in changed else "")
                yield replace(x, causal=causal, scale=scale), o, words, f"if it is so by itself: {given}"
            if x.q.shape[2] % x.k.shape[2] == 0:
                words = "where they are [B, L, H, D]; the order here is [B, H, L, D]"
                way_out = "keep them with --order blhd, and check it with --shapes blhd"
                yield replace(x, **turned, causal=causal, scale=scale), o.transpose(1, 2), words, way_out


def _agrees(x: Attention, o: Tensor) -> bool:
    """Whether O of the first heads of the first batch fits a reading."""
    heads = slice(0, min(_MOST_HEADS, x.n_heads))
    expected = evaluate(x, Tile(0, heads, slice(0, x.n_query)))["O"]
    return bool((o[0, heads].double() - expected).abs().max() <= _ALIKE * expected.abs().max())
