"""Forward: whether the O and LSE of a file are those of its q, k and v, and its inputs are read as they were meant."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from ..model.case import Case
from ..model.failures import InputsFailure, TargetFailure
from ..model.mechanisms import door
from ..reference import Attention, Tile, evaluate
from .compare import allowed_on, attention_of, judge, tiles_of
from .declared_precision import ROUNDED, precision_of, with_roundings
from .evidence import MeasuredRun

# Results of a forward, and how a file calls them.
_KEYS = {"LSE": "lse", "O": "o"}
# O of another reading differs by about its own size; the roundings of 16-bit kernels by a hundredth of it.
_ALIKE = 0.02
# q, k, v and do must be all there is, so that their axes may be swapped.
_OTHER_INPUTS = ("bias", "seqlens", "mask", "alibi", "sinks", "keep", "cu_seqlens_q", "tau")


def refuse_wrong_forward(case: Case, values: Mapping[str, Tensor], keys: frozenset[str]) -> None:
    """Refuses a file of which the O or LSE is not that of its q, k and v in the coarsest arithmetic that is known.

    Args:
        keys: which of "o" and "lse" the file holds and the target takes.

    Raises:
        InputsFailure: one is not, saying how it is related to what it should be, where that is simple.
    """
    given = {name: values[key] for name, key in _KEYS.items() if key in keys}
    if not given:
        return
    x = attention_of(case, values)
    wrong = dict.fromkeys(given, 0)
    for name, count in _wrong_rows(case, x, given):
        wrong[name] += count
    for name, count in wrong.items():
        if count:
            from .conventions import relation_of

            key, of = _KEYS[name], x.n_batch * x.n_heads * x.n_query
            relation = relation_of(case, x, name, given[name].double())
            words = f"it is {relation.relation}" if relation else f"{count} of {of} rows differ"
            raise InputsFailure(
                f"{case.inputs}: its {key} is not the {name} of its q, k and v: {words}",
                f"mend the file, say the options that it was made with, or leave {key} out: it is computed then",
            )


def _wrong_rows(
    case: Case, x: Attention, given: Mapping[str, Tensor]
) -> Iterator[tuple[str, int]]:
    """How many rows that see a key are wrong, tile by tile."""
    precision = precision_of(case.dtype, "tf32")
    if case.dtype != "float32":
        precision = with_roundings(precision, ROUNDED, 16)
    for tile in tiles_of(case, x):
        values = evaluate(x, tile)
        budget = allowed_on(x, tile, values, precision)
        live = values["valid"].any(-1)
        for name, whole in given.items():
            right = judge(whole[tile.batch, tile.heads, tile.rows], values, budget, name).right
            yield name, int((~right.reshape(*live.shape, -1).all(-1) & live).sum())


@door("misreading")
def refuse_misreading(measured: MeasuredRun, given: Container[str], target: str) -> None:
    """Refuses a file's inputs with which O is wrong as they were read, and right as [B, L, H, D].

    Args:
        measured: a run that is wrong.
        given: the names of what the file holds.

    Raises:
        TargetFailure: they are to be read so.
    """
    if "O" not in measured.trace.values or not measured.comparison.findings["O"].mismatched:
        return
    x, o = measured.x, measured.trace.values["O"].transpose(1, 2)
    has_others = "o" in given or any(getattr(x, name) is not None for name in _OTHER_INPUTS)
    if has_others or x.q.shape[2] % x.k.shape[2]:
        return
    x = replace(x, **{name: getattr(x, name).transpose(1, 2) for name in ("q", "k", "v", "do")})
    expected = evaluate(x, Tile(0, slice(0, 1), slice(0, x.n_query)))["O"]
    if bool((o[0, :1].double() - expected).abs().max() <= _ALIKE * expected.abs().max()):
        raise TargetFailure(
            f"O of target {target!r} is wrong as its inputs were read, and right where they are [B, L, H, D]; "
            "the order here is [B, H, L, D]",
            "keep them with --order blhd, and check it with --shapes blhd",
        )
