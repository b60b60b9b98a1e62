"""A matrix of cases: every combination of the values that options are given, or a choice that suits a target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...model.failures import UsageFailure
from .described import Takes

# Of combinations: days of checks.
LARGEST = 10_000
_SHORT = {"seqlen": "L", "head_dim": "D", "heads": "H", "kv_heads": "Hkv", "batch": "B"}
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
    left = {name: words for name, words in axes.items() if words and not _decided(name, given)}
    cases = combinations(left)
    largest = {name: words[-1] for name, words in left.items() if name == "seqlen"}
    if "head_dim" in left:
        cases.append({**largest, "head_dim": 72})
    if softmax and not _GROUPS & given.keys():
        cases.append({**largest, "heads": 4, "kv_heads": 2})
    return cases


def _decided(name: str, given: Mapping[str, Any]) -> bool:
    return name in given or ("inputs" in given and name in ("dtype", "head_dim"))


def titles(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each case: the options in which they differ."""
    names = dict.fromkeys(name for case in cases for name in case)
    vary = [name for name in names if len({str(case.get(name)) for case in cases}) > 1]
    return [" ".join(_word(name, case[name]) for name in vary if name in case) for case in cases]


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    return str(value) if name == "dtype" else f"{_SHORT.get(name, name.replace('_', '-'))}={value}"
