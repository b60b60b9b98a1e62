"""A matrix of cases: every combination of the values that options are given, or a choice that suits a target."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...inputs.history import CheckRequest
from ...model.failures import Failure, UsageFailure
from ...processes import run_each, run_here
from .checked import titled

DESCRIBER = f"{__name__}:Describer"


@dataclass(frozen=True)
class Takes:
    """A target's signature, as far as cases depend on it."""

    family: str
    names: frozenset[str]
    """The canonical names of its parameters."""
    required: frozenset[str]
    """Of those without a default."""
    file: str = ""
    """Its Python source; "" where there is none."""
    function: str = ""
    device: str = "cpu"
    """Where it runs."""


class Describer:
    """`Describer(device)(asked)` is what the target of a check takes. Torch is imported first, outside any timeout."""

    def __init__(self, device: str) -> None:
        from ...runtime.backend import prepare_backend

        self._device = prepare_backend(device)

    def __call__(self, request: CheckRequest) -> Takes:
        from ...frontends.triton.stand_in import stand_in_for
        from ...targets.find import find_target

        stand_in_for(request.options.get("arch"))
        with contextlib.redirect_stdout(sys.stderr):
            target = find_target(request.target, request.family)
        own = target.source
        return Takes(target.family, frozenset(target.takes), target.required, own.file, own.name, self._device)


def described(
    requests: Sequence[CheckRequest], device: str, timeout: float | None, *, isolate: bool = True
) -> Iterator[Takes | None]:
    """What the target of each takes, in order; None of one that cannot be imported, which its checks will tell.

    Args:
        isolate: whether each is asked in a process of its own.
    """
    for request in requests:
        if isolate:
            (ended,) = run_each(DESCRIBER, device, [request], timeout=timeout)
            yield ended.result
        else:
            with contextlib.suppress(Failure):
                (ended,) = run_here(DESCRIBER, device, [request])
                yield ended.result
                continue
            yield None


# Of combinations: days of checks.
LARGEST = 10_000
# Options that decide lengths, or heads, by themselves.
_LENGTHS = {"seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens", "cu_seqlens_k", "inputs"}
_GROUPS = {"heads", "kv_heads", "tau", "inputs"}


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The options of each case; the last option varies fastest.

    Raises:
        UsageFailure: there are more than anybody waits for.
    """
    count = math.prod(len(words) for words in values.values())
    if count > LARGEST:
        raise UsageFailure(f"sweep: {count:,} cases are more than {LARGEST:,}", "give fewer values")
    return [dict(zip(values, words, strict=True)) for words in itertools.product(*values.values())]


def suiting(takes: Takes, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A dozen or so cases for a target: lengths of less than a tile, of one and a bit, and of several; both head dims.

    An option that is given is the same in all.
    """
    softmax = takes.family == "softmax"
    axes = {
        "dtype": ("float32", "float16"),
        "causal": (False, True) if softmax and "causal" in takes.names else (),
        "seqlen": () if _LENGTHS & given.keys() else (1, 37, 72),
        "head_dim": (16,),
    }
    decided = {*given, *(("dtype", "head_dim") if "inputs" in given else ())}
    left = {name: words for name, words in axes.items() if words and name not in decided}
    cases = combinations(left)
    largest = {name: words[-1] for name, words in left.items() if name == "seqlen"}
    if "head_dim" in left:
        cases.append({**largest, "head_dim": 72})
    if softmax and not _GROUPS & given.keys():
        cases.append({**largest, "heads": 4, "kv_heads": 2})
    return cases


def titles(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each case: the options in which they differ."""
    names = dict.fromkeys(name for case in cases for name in case)
    vary = [name for name in names if len({str(case.get(name)) for case in cases}) > 1]
    return [" ".join(titled({name: case[name] for name in vary if name in case})) for case in cases]
