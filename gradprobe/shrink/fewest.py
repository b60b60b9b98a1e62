"""Case -> the fewest words of the command line that resolve to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..cases.case import Case, resolve
from ..cases.layouts import run_name
from ..failures import UsageFailure
from ..options import parse
from ..probing.runs import layouts_of
from .ordering import settled


@dataclass(frozen=True)
class Facts:
    """What is known of a target and the case asked for, before anything runs."""

    case: Case
    takes_bias: bool
    packs: bool
    """Whether the target takes its sequences packed."""
    tensors: tuple[str, ...]
    """What the target is given in the case, by the names that --layout takes."""

    def resolved(self, words: Mapping[str, Any]) -> Case:
        """The case that words of the command line mean for this target, settled.

        Raises:
            UsageFailure: no case has them.
        """
        given = {**parse(words), "device": self.case.device}
        return settled(resolve(given, self.case.family, takes_bias=self.takes_bias, packs=self.packs))


def fewest_words(case: Case, facts: Facts, kept: Mapping[str, Any]) -> dict[str, Any] | None:
    """The words that mean a case, none of which could be left out; None where no words do.

    Args:
        kept: words that stand in any case, such as --device.
    """
    words = {**_all_words(case, packs=facts.packs), **kept}
    if _meant(facts, words) != case:
        return None
    for name in [name for name in words if name not in kept]:
        fewer = {other: word for other, word in words.items() if other != name}
        if _meant(facts, fewer) == case:
            words = fewer
    return words


def _meant(facts: Facts, words: Mapping[str, Any]) -> Case | None:
    try:
        return facts.resolved(words)
    except UsageFailure:
        return None


def _all_words(case: Case, *, packs: bool) -> dict[str, Any]:
    """Every option of a case as the command line holds it, also those that it would have by default."""
    words: dict[str, Any] = {
        "batch": case.batch, "heads": case.heads, "kv_heads": case.kv_heads, **_length_words(case),
        "head_dim": case.head_dim, "head_dim_v": case.head_dim_v, "dtype": case.dtype, "causal": case.causal,
        "align": case.align, "window": _joined(case.window), "softcap": case.softcap, "scale": case.scale,
        "bias": case.bias, "bias_window": case.bias_window, "bias_axes": case.bias_axes, "bias_rank": case.bias_rank,
        "alibi": case.alibi, "mask": case.mask, "mask_axes": case.mask_axes, "mask_rank": case.mask_rank,
        "sinks": case.sinks, "dropout": case.dropout, "tau": _taus(case),
        "seqlens": _joined(case.seqlens), "cu_seqlens": _joined(case.cu_seqlens_q),
        "cu_seqlens_k": _joined(case.cu_seqlens_k), "seed": case.seed, "block_m": case.block_m,
        "block_n": case.block_n, "pattern": case.pattern, "dots": case.dots, "repeat": case.repeat,
        "configs": case.configs, "schedules": case.schedules, "poison": case.poison, "tap": list(case.taps),
        "recover": case.recover, "strict": case.strict, "shapes": case.shapes, "inplace": list(case.inplace),
        "as_cuda": case.as_cuda,
        "implied": ",".join(case.implied) or None, **_layout_words(case),
    }  # fmt: skip
    words = {name: word for name, word in words.items() if word is not None and word != []}
    return {name: word for name, word in words.items() if not _is_foreign(name, case)}


def _is_foreign(name: str, case: Case) -> bool:
    """Whether the family, or a case without a bias or a mask, has no such option."""
    of_softmax = (
        "kv_heads",
        "head_dim_v",
        "align",
        "alibi",
        "sinks",
        "dropout",
        "bias_axes",
        "bias_rank",
        "mask_axes",
        "mask_rank",
    )
    foreign = of_softmax if case.family == "lazy" else ("bias_window",)
    without = not case.bias and name in ("bias_axes", "bias_rank", "bias_window")
    return name in foreign or without or (case.mask is None and name in ("mask_axes", "mask_rank"))


def _length_words(case: Case) -> dict[str, int]:
    if case.cu_seqlens_q is not None:
        return {}
    if case.seqlen_q == case.seqlen_k:
        return {"seqlen": case.seqlen_q}
    return {"seqlen_q": case.seqlen_q, "seqlen_k": case.seqlen_k}


def _layout_words(case: Case) -> dict[str, list[str]]:
    runs = layouts_of(case)
    if len(runs) == 1 and runs[0]:
        return {"layout": [f"{tensor}={layout}" for tensor, layout in runs[0]]}
    return {"runs": [run_name(assigned) for assigned in runs]}


def _taus(case: Case) -> str | None:
    same = case.tau is not None and len(set(case.tau)) == 1
    return _joined(case.tau[:1] if same and case.tau else case.tau)


def _joined(numbers: tuple[float, ...] | None) -> str | None:
    return None if numbers is None else ",".join(map(str, numbers))
