"""The words of a command line -> a kernel's Contract, and what is shown of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..inputs.history import CheckRequest
from ..model.case import flag_of
from ..model.failures import UsageFailure
from ..model.intermediates import PRODUCTS
from ..model.kernel_contract import IEEE, Contract, Reading
from ..render.notation import headed, lines_of, wrapped

if TYPE_CHECKING:
    from rich.text import Text

# What does not come with a target's own shapes: long enough to tell tiles apart, and a scale that is a power of two.
DEFAULTS = {"batch": 1, "heads": 1, "head_dim": 64}
SEQLEN = 512
_LENGTHS = ("seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens")
_FOREIGN = ("inputs", "pattern", "layout", "runs", "repeat", "poison", "recover", "strict")
_COLUMN = 15
# Of the words that fit a part alike, so many are shown.
_SHOWN = 2


@dataclass(frozen=True)
class ReadContract:
    """A contract, and what it was read with."""

    contract: Contract
    environment: Mapping[str, str]
    reproduce: str

    def as_json(self) -> dict[str, Any]:
        """The document gradprobe.contract/1."""
        return self.contract.as_json() | {"environment": dict(self.environment), "reproduce": self.reproduce}


def read_contract(request: CheckRequest) -> ReadContract:
    """Runs a target on values that tell its arithmetic.

    Raises:
        UsageFailure: an option that says nothing here, or a case without such values.
        TargetFailure: the target could not be run, or gives no gradient.
    """
    for name in _FOREIGN:
        if name in request.options:
            words = f"{flag_of(name)}: contract runs contiguous values of its own, each once"
            raise UsageFailure(words, "drop it; gradprobe check takes it")
    options = {**DEFAULTS, **request.options, "pattern": "dyadic"}
    if not any(name in options for name in _LENGTHS):
        options["seqlen"] = SEQLEN
    with contextlib.redirect_stdout(sys.stderr):
        from ..pipeline.resolve import resolve_problem

        problem = resolve_problem(CheckRequest(request.target, request.family, None, options))
        from ..probing.contract import contract_of
        from ..probing.receipt import environment

        contract = contract_of(problem.target, problem.case)
    return ReadContract(contract, environment(problem.case.device), request.command("contract"))


def render_contract(read: ReadContract, width: int) -> list[Text]:
    """Lines of a console: what the kernel does otherwise than its dtype implies, then each result in its parts."""
    from rich.text import Text

    contract = read.contract
    verdict, style = ("CONTRACT", "bold green") if contract.is_read else ("NOT READ", "bold yellow")
    lines = [*headed(verdict, style, _headline(contract), width), Text("")]
    for name in ("O", "dV", "dQ", "dK"):
        said = [line for one in contract.readings if one.of == name for line in _parts(one, width)]
        for number, line in enumerate(said):
            title = f"{name} = {PRODUCTS[name].formula}" if number == 0 else ""
            lines.append(Text.assemble((f"  {title:<{_COLUMN}}", "bold"), line))
    return [*lines, Text(""), *(Text(line, style="dim") for words in _notes(read) for line in wrapped(words, width))]


def _headline(contract: Contract) -> str:
    unread = [one for one in contract.readings if not one.fits]
    if unread:
        names = ", ".join(f"{'the sum of ' if one.sums else ''}{one.of}" for one in unread)
        return f"{contract.target}, {contract.case.dtype}: no known way gives the bits of {names}"
    return f"{contract.target}, {contract.case.dtype}: {_summary(contract)}"


def _summary(contract: Contract) -> str:
    coarse = [one for one in contract.readings if one.sums and IEEE not in one.parts["sums"]]
    by_words: dict[str, list[str]] = {}
    for one in coarse:
        by_words.setdefault(one.parts["sums"][0], []).append(one.of)
    words = [f"sums {' and '.join(names)} in {how}" for how, names in by_words.items()]
    if contract.dots:
        words.insert(0, "multiplies in IEEE float32" if contract.dots == "ieee" else "multiplies in TF32 or coarser")
    return "; ".join(words or ["sums in float32"])


def _parts(reading: Reading, width: int) -> Iterator[str]:
    said = []
    for part, words in reading.parts.items():
        more = f", or {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
        said.append(f"{part}: {' or '.join(words[:_SHOWN])}{more}")
    if not reading.fits:
        said.insert(0, f"nearest of {reading.ways} ways, {reading.differing:,} of {reading.elements:,} elements differ")
    yield from lines_of("; ".join(said), max(width - _COLUMN - 2, 20))


def _notes(read: ReadContract) -> Iterator[str]:
    contract, readings = read.contract, read.contract.readings
    elements, ways = sum(one.elements for one in readings), sum(one.ways for one in readings)
    draws = f"{max(one.draws for one in readings)} draws from seed {contract.seed} on"
    if contract.is_read:
        yield f"each part gives all of {elements:,} elements, bit for bit, on up to {draws}; {ways} ways were tried"
    else:
        yield f"{ways} ways were tried on {elements:,} elements, up to {draws}"
        yield "gradprobe check says whether the kernel is right: the arithmetic of a wrong one cannot be read"
    if any(len(words) > 1 for one in readings for words in one.parts.values()):
        yield '"or": the ways give the same bits here'
    yield from contract.absent
    yield "  ".join(f"{name} {read.environment[name]}" for name in ("device", "torch", "triton"))
    yield f"again: {read.reproduce}"
