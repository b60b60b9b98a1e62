"""A kernel's Contract: read off the bits of its results on values that tell its arithmetic, and shown."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..inputs.history import CheckRequest
from ..model.case import Case, flag_of
from ..model.failures import TargetFailure, UsageFailure
from ..model.intermediates import PRODUCTS
from ..model.kernel_contract import IEEE, Contract, Reading
from ..numerics.coarser import Model
from ..numerics.compare import attention_of
from ..numerics.readings import Draws, read, read_sums
from ..numerics.ways import AGAIN, GroupedProblem
from ..probing.experiment import experiment_of, inputs_of
from ..render.notation import headed, lines_of, wrapped
from ..runtime.run import run_target
from ..targets.find import Target

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
# Rows and keys beyond which what is rounded before a product shows no better.
_MOST_ROWS = 128
# At most, while several ways fit.
_DRAWS = 8


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
        from ..probing.receipt import environment

        contract = contract_of(problem.target, problem.case)
    return ReadContract(contract, environment(problem.case.device), request.command("contract"))


def contract_of(target: Target, case: Case) -> Contract:
    """What a target rounds before its products, and in what it adds up dQ, dK and dV.

    It is run on dyadic values, of which nothing but sums is rounded, and on standard normal ones, with the case's seed
    and those that follow. What fits on all of them is its contract.

    Args:
        case: its pattern does not count; with a scale for which dyadic values exist.

    Raises:
        UsageFailure: there are no dyadic values for the case, or it uses what the target does not take.
        TargetFailure: the target could not be run, or gives no gradient and no O.
    """
    even = _draws(target, replace(case, pattern="dyadic"))
    given = [name for name in PRODUCTS if name in even.at(0).trace.values]
    if not given:
        raise TargetFailure(f"target {target.name!r} gives no O, dQ, dK or dV to read its arithmetic off")
    sums = {name: read_sums(even, name) for name in given if name != "O"}
    short = case
    if case.cu_seqlens_q is None and case.seqlen_q == case.seqlen_k:
        length = min(case.seqlen_q, _MOST_ROWS)
        short = case.with_lengths(length, length)
    # How sums are kept that are not in float32: in a shorter case it may be in other tiles.
    dyadic, coarse = _draws(target, replace(short, pattern="dyadic")), dict[str, Model]()
    for name in (name for name, (_, models) in sums.items() if None not in models):
        models = read_sums(dyadic, name)[1]
        if models and models[0] is not None:
            coarse[name] = models[0]
    # A scale that is no power of two, where it may have one.
    scale = 0.8 * short.scale if "scale" in target.takes else short.scale
    rounded = read(_draws(target, replace(short, pattern="normal", scale=scale), coarse))
    for reading in rounded:
        if AGAIN in reading.parts.get("k", reading.parts.get("q", ())):
            sums[reading.of] = read_sums(even, reading.of, reading)
    added = [reading for reading, _ in sums.values()]
    if case.dtype == "float32":
        added = [_implied(reading, rounded) for reading in added]
    absent = tuple(f"{name} is not given" for name in PRODUCTS if name not in given)
    return Contract(target.name, even.at(0).case, case.seed, (*rounded, *added), absent)


def _implied(sums: Reading, rounded: Sequence[Reading]) -> Reading:
    """Of float32: every way to round ends in a sum in float32, so where one fits, that does.

    In TF32 a lazy kernel rounds what tau adds to P, so that dyadic values show more than its sums.
    """
    is_known = any(one.of == sums.of and one.fits for one in rounded)
    return sums if sums.fits or not is_known else replace(sums, fits=(sums.nearest,), differing=0)


def _draws(target: Target, case: Case, models: Mapping[str, Model] = MappingProxyType({})) -> Draws:
    """The target on a case, contiguous, with the case's seed and those that follow."""

    def run(number: int) -> GroupedProblem:
        drawn = replace(case, seed=case.seed + number)
        inputs = inputs_of(experiment_of(drawn, target), ())
        trace = run_target(target, drawn, inputs).trace
        assert trace is not None  # what is contiguous may not be refused
        return GroupedProblem(drawn, attention_of(drawn, inputs.values), trace, models)

    return Draws(run, _DRAWS)


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
