"""A case in words: by the fewest options of the command line, and in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ...inputs.options import OPTIONS, length_words, parse
from ...model.assignment import run_name
from ...model.case import Case
from ...model.failures import UsageFailure
from ...model.resolution import SOFTMAX_ALONE, resolve
from ...probing.experiment import layouts_of
from .simpler_cases import options_on, settled

# What is said in another way than by an option of the same name, or is no option of a case that is drawn.
_OTHERWISE = {
    "family", "device", "inputs", "seqlen_q", "seqlen_k", "cu_seqlens_q", "layouts", "runs", "implied", "inplace",
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What of a target decides which case words mean."""

    family: str
    device: str
    takes_bias: bool
    packs: bool
    """Whether the target takes its sequences packed."""
    kept: Mapping[str, Any]
    """Words that stand in any case, such as --recover."""

    def resolved(self, words: Mapping[str, Any]) -> Case:
        """The case that words mean, settled. Raises UsageFailure where no case has them."""
        given, takes_bias = {**parse(words), "device": self.device}, self.takes_bias
        return settled(resolve(given, self.family, takes_bias=takes_bias, packs=self.packs))

    def _mean(self, words: Mapping[str, Any], case: Case) -> bool:
        try:
            return self.resolved(words) == case
        except UsageFailure:
            return False

    def fewest_words(self, case: Case) -> dict[str, Any] | None:
        """The fewest options that resolve to a case, none of which could be left out; None where no options do."""
        words = {**_all_words(case), **self.kept}
        if not self._mean(words, case):
            return None
        for name in [name for name in words if name not in self.kept]:
            fewer = {other: word for other, word in words.items() if other != name}
            if self._mean(fewer, case):
                words = fewer
        return words


def _all_words(case: Case) -> dict[str, Any]:
    """Every option of a case as the command line writes it, defaults included."""
    words: dict[str, Any] = {}
    for field in fields(case):
        if field.name not in _OTHERWISE:
            value = getattr(case, field.name)
            words[field.name] = ",".join(map(str, value)) if isinstance(value, tuple) else value
    if case.tau and len(set(case.tau)) == 1:
        words["tau"] = str(case.tau[0])
    words["implied"], words["inplace"] = ",".join(case.implied) or None, list(case.inplace)
    words |= length_words(case)
    runs = layouts_of(case)
    if len(runs) == 1 and runs[0]:
        words["layout"] = [f"{tensor}={layout}" for tensor, layout in runs[0]]
    else:
        words["runs"] = [run_name(assigned) for assigned in runs]
    # What the family, or a case without a bias or a mask, does not have.
    foreign = {*(SOFTMAX_ALONE if case.family == "lazy" else ("bias_window",))}
    if not case.bias:
        foreign |= {"bias_axes", "bias_rank", "bias_window"}
    if case.mask is None:
        foreign |= {"mask_axes", "mask_rank", "mask_as"}
    names = [option.name for option in OPTIONS if option.name not in foreign]
    return {name: words[name] for name in names if words.get(name) not in (None, [])}


# What is said only where it is not that of another.
_BESIDE = {"kv_heads": "heads", "seqlen_k": "seqlen_q", "head_dim_v": "head_dim"}
_SIZES = ("batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v")


def case_in_words(case: Case) -> str:
    """A case in one line: "batch=1 heads=2 seqlen=1 head-dim=1 layout=do=distinct"."""
    names = [name for name in _SIZES if not _is_same(case, name, _BESIDE.get(name, ""))]
    words = [_word(case, name) for name in (*names, *options_on(case))]
    if "seqlen_k" not in names:
        words = [word.replace("seqlen-q=", "seqlen=") for word in words]
    words.append(f"layout={' and '.join(map(run_name, layouts_of(case)))}")
    for name in ("pattern", "seed", "dtype"):
        if getattr(case, name) != getattr(Case, name):
            words.append(_word(case, name))
    return " ".join(words)


def _is_same(case: Case, name: str, other: str) -> bool:
    return bool(other) and getattr(case, name) == getattr(case, other)


def _word(case: Case, name: str) -> str:
    value = getattr(case, name)
    flag = name.replace("cu_seqlens_q", "cu_seqlens").replace("_", "-")
    if isinstance(value, bool):
        return flag
    return f"{flag}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
