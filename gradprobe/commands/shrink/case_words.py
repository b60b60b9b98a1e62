"""A case by the fewest options of the command line, and as a pytest test."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
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


_TEST = '''"""{first}

The smallest case that fails so. It passes once the fault is gone.
"""

{imports}from gradprobe.testing import assert_backward_matches

{here}
def test_{name}_shrunk():
    assert_backward_matches(
        {subject},
{options}    )
'''


def pytest_source(request: CheckRequest, first: str, file: Path) -> str:
    """The source of a test of what was asked.

    Args:
        first: what is wrong, in one line.
        file: where the test is to lie; it finds the target's file from there.
    """
    place, _, function = request.target.rpartition(":")
    subject, imports, here = repr(request.target), "", ""
    if place.endswith(".py") and request.target not in BUILTINS:
        path = os.path.relpath(Path(place).resolve(), file.resolve().parent)
        subject = f"str((HERE / {path!r}).resolve()) + {':' + function!r}"
        imports = "from pathlib import Path\n\n"
        here = "HERE = Path(__file__).resolve().parent\n\n"
    words = {"family": request.family, "reference": request.reference} | dict(request.options)
    options = "".join(_options(words))
    name = re.sub(r"\W+", "_", function or request.target).lower()
    title = visible(first).replace("\\", r"\\").replace('"""', "'''")
    return _TEST.format(
        first=title, imports=imports, here=here, name=name, subject=subject, options=options
    )


def _options(words: Mapping[str, Any]) -> Iterator[str]:
    """Options as Python values: numbers with commas as a tuple."""
    numbers = {option.name for option in OPTIONS if option.numbers}
    for name, word in words.items():
        if word is not None:
            value = tuple(map(_number, word.split(","))) if name in numbers else word
            yield f"        {name}={value!r},\n"


def _number(word: str) -> float:
    return float(word) if re.search(r"[.en]", word) else int(word)
