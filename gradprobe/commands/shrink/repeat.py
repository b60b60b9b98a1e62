"""How a case is repeated: by the fewest words of the command line, and by a pytest test."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...inputs.history import CheckRequest
from ...inputs.options import OPTIONS, length_words, parse
from ...model.assignment import run_name
from ...model.case import Case
from ...model.failures import UsageFailure
from ...model.resolution import SOFTMAX_ALONE, resolve
from ...model.writing import visible
from ...probing.experiment import layouts_of
from ...targets.builtin import BUILTINS
from .simpler_cases import settled

# What is said in another way than by an option of the same name, or is no option of a case that is drawn.
_OTHERWISE = {
    "family",
    "device",
    "inputs",
    "seqlen_q",
    "seqlen_k",
    "cu_seqlens_q",
    "layouts",
    "runs",
}
_OTHERWISE |= {"implied", "inplace"}


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
        return settled(
            resolve(given, self.case.family, takes_bias=self.takes_bias, packs=self.packs)
        )


def fewest_words(case: Case, facts: Facts, kept: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fewest options that resolve to a case, none of which could be left out; None where no options do.

    Args:
        kept: words that stand in any case, such as --device.
    """
    words = {**_all_words(case), **kept}
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


_HEAD = '''"""{first}

The smallest case that fails so. It passes once the fault is gone.
"""

{imports}from gradprobe.testing import assert_backward_matches

'''


def pytest_source(request: CheckRequest, first: str, file: Path) -> str:
    """The source of a test of what was asked.

    Args:
        first: what is wrong, in one line.
        file: where the test is to lie; it finds the target's file from there.
    """
    subject, needs_path = _subject(request.target, file)
    words = {"family": request.family, "reference": request.reference} | dict(request.options)
    options = "".join(
        f"        {name}={_value(name, word)!r},\n"
        for name, word in words.items()
        if word is not None
    )
    imports = "from pathlib import Path\n\n" if needs_path else ""
    here = "HERE = Path(__file__).resolve().parent\n\n\n" if needs_path else "\n"
    name = re.sub(r"\W+", "_", request.target.rpartition(":")[2] or request.target).lower()
    call = f"    assert_backward_matches(\n        {subject},\n{options}    )\n"
    title = visible(first).replace("\\", r"\\").replace('"""', "'''")
    return (
        _HEAD.format(first=title, imports=imports) + here + f"def test_{name}_shrunk():\n{call}"
    )


def _subject(target: str, file: Path) -> tuple[str, bool]:
    """The source of the target's word, and whether it needs the folder of the test."""
    place, _, name = target.rpartition(":")
    if target in BUILTINS or not place.endswith(".py"):
        return repr(target), False
    path = os.path.relpath(Path(place).resolve(), file.resolve().parent)
    return f"str((HERE / {path!r}).resolve()) + {':' + name!r}", True


def _value(name: str, word: Any) -> Any:
    """An option as a Python value: numbers with commas as a tuple."""
    if not any(option.numbers for option in OPTIONS if option.name == name):
        return word
    return tuple(
        float(part) if re.search(r"[.en]", part) else int(part) for part in word.split(",")
    )
