"""Whether O is wrong because a file's inputs were misread: they are [B, L, H, D]."""

from __future__ import annotations

from dataclasses import replace

from ..inputs.saved import Saved
from ..model.failures import TargetFailure
from ..model.mechanisms import door
from ..numerics.evidence import Measured
from ..reference import Tile, evaluate
from ..targets.find import Target

# O of another reading differs by about its own size; the roundings of 16-bit kernels by a hundredth of it.
_ALIKE = 0.02
# q, k, v and do must be all there is, so that their axes may be swapped.
_OTHERS = ("bias", "seqlens", "mask", "alibi", "sinks", "keep", "cu_seqlens_q", "tau")


@door("misreading")
def refuse_misreading(measured: Measured | None, saved: Saved, target: Target) -> None:
    """Does nothing where O is right as the inputs were read, or wrong as [B, L, H, D] too.

    Args:
        measured: the first run that is wrong, by its own results; None where there is none.

    Raises:
        TargetFailure: O is wrong as the inputs were read, and right as they may be read as well.
    """
    if measured is None or "O" not in measured.trace.values or not measured.comparison.findings["O"].mismatched:
        return
    x, o = measured.x, measured.trace.values["O"].transpose(1, 2)
    if "o" in saved.values or any(getattr(x, name) is not None for name in _OTHERS) or x.q.shape[2] % x.k.shape[2]:
        return
    x = replace(x, **{name: getattr(x, name).transpose(1, 2) for name in ("q", "k", "v", "do")})
    expected = evaluate(x, Tile(0, slice(0, 1), slice(0, x.n_query)))["O"]
    if bool((o[0, :1].double() - expected).abs().max() <= _ALIKE * expected.abs().max()):
        raise TargetFailure(
            f"O of target {target.name!r} is wrong as its inputs were read, and right where they are [B, L, H, D]; "
            "the order here is [B, H, L, D]",
            "keep them with --order blhd, and check it with --shapes blhd",
        )
