"""A kernel's Contract: what check proves of its sums and of its scores' operands; and how it is shown."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..inputs.history import CheckRequest
from ..model.case import Case, flag_of
from ..model.failures import TargetFailure, UsageFailure
from ..model.intermediates import PRODUCTS
from ..model.number import listed
from ..numerics.coarser import Operand
from ..numerics.declared_precision import CoarserArithmetic
from ..numerics.sums import Model
from ..probing.experiment import experiment_of, inputs_of
from ..probing.measure import measure
from ..render.rows import folded, headed
from ..runtime.run import run_target
from ..targets.find import Target

if TYPE_CHECKING:
    from rich.text import Text

SCHEMA = "gradprobe.contract/3"
# What does not come with a target's own shapes: long enough to tell tiles apart, and a scale that is a power of two.
DEFAULTS = {"batch": 1, "heads": 1, "head_dim": 64}
SEQLEN = 512
_LENGTHS = {"seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens"}
_FOREIGN = {"inputs", "pattern", "layout", "runs", "repeat", "poison", "recover", "strict"}


@dataclass(frozen=True)
class Contract:
    target: str
    case: Case
    dots: str = ""
    """How float32 is multiplied: ieee, or tf32 where a product is coarser; "" of other dtypes, or of neither."""
    operand: str = ""
    sums: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    reproduce: str = ""

    def as_json(self) -> dict[str, Any]:
        fields, verdict = dict(vars(self)), "not read" if self.unread else "read"
        case: Case = fields.pop("case")
        head = {"schema": SCHEMA, "verdict": verdict, "dtype": case.dtype, "seed": case.seed}
        return head | fields


def read_contract(request: CheckRequest) -> Contract:
    """Runs a target on values that tell its arithmetic. UsageFailure of an option that says nothing here."""
    for name in request.options.keys() & _FOREIGN:
        words = f"{flag_of(name)}: contract runs contiguous values of its own, each once"
        raise UsageFailure(words, "drop it; gradprobe check takes it")
    lengths = {} if request.options.keys() & _LENGTHS else {"seqlen": SEQLEN}
    options = {**DEFAULTS, **lengths, **request.options, "pattern": "dyadic"}
    with contextlib.redirect_stdout(sys.stderr):
        from ..inputs.versions import environment
        from ..pipeline.resolve import resolve_problem

        problem = resolve_problem(CheckRequest(request.target, request.family, None, options))
        contract = contract_of(problem.target, problem.case)
    command = request.command(contract=True)
    return replace(contract, environment=environment(problem.case.device), reproduce=command)


def contract_of(target: Target, case: Case) -> Contract:
    """How a target multiplies float32; of 16 bits in what it adds up dQ, dK and dV, and what operand it rounds.
    UsageFailure: no dyadic values fit the case; TargetFailure: it gives none of these, or could not be run."""
    is_wide = case.dtype == "float32"
    experiment = experiment_of(replace(case, pattern="normal" if is_wide else "dyadic"), target)
    inputs = inputs_of(experiment, ())
    trace = run_target(target, experiment.case, inputs).trace
    assert trace is not None  # what is contiguous may not be refused
    given = [name for name in PRODUCTS if name in trace.values]
    if not given:
        words = f"target {target.name!r} gives no O, dQ, dK or dV to read its arithmetic off"
        raise TargetFailure(words)
    absent = tuple(name for name in PRODUCTS if name not in given)
    contract = Contract(target.name, case, absent=absent)
    for dots in ("ieee", "tf32") if is_wide else ():
        # The target is run as it was asked for, and judged by one and the other.
        judged = replace(experiment, case=replace(experiment.case, dots=dots))
        if measure(judged, inputs_of(judged, ()), trace).comparison.matches:
            return replace(contract, dots=dots)
    if is_wide:
        return replace(contract, unread=tuple(given))
    # On dyadic values nothing else is rounded: check's own engine proves how sums are kept.
    exact = measure(experiment, inputs_of(experiment, ()), trace)
    findings = exact.comparison.findings
    unread = tuple(name for name in given if name in findings and findings[name].mismatched)
    sums, operand = dict[str, str](), ""
    for each in exact.coarser:
        if isinstance(each.by, Model):
            sums[each.name] = _sum_in_words(each)
        elif isinstance(each.by, Operand):
            operand += each.by.product
    return replace(contract, operand=operand, sums=sums, unread=unread)


def _sum_in_words(of: CoarserArithmetic) -> str:
    model, along = of.by, "keys" if of.name == "dQ" else "query rows"
    if model.apart:
        return f"{of.dtype}, each query head's rounded before a group's are added up"
    step = f"{model.tile} {along}" if model.tile else "query head"
    return f"{of.dtype}, rounded after each {step}, from the {'last' if model.backwards else 'first'}"


def render_contract(contract: Contract, width: int) -> list[Text]:
    from rich.text import Text

    verdict = ("NOT READ", "bold yellow") if contract.unread else ("CONTRACT", "bold green")
    found = contract.environment
    notes = ["  ".join(f"{name} {found[name]}" for name in ("device", "torch", "triton"))]
    notes.append(f"again: {contract.reproduce}")
    if contract.unread:
        notes.insert(0, "a wrong kernel cannot be read: gradprobe check says whether it is one")
    lines = [*headed(*verdict, _headline(contract), width), Text()]
    for words in notes:
        lines += folded(words, width, "dim")
    return lines


def _headline(contract: Contract) -> str:
    name = f"{contract.target}, {contract.case.dtype}"
    if contract.unread:
        return f"{name}: no known way gives {listed(contract.unread)}"
    if contract.dots:
        how = "IEEE float32" if contract.dots == "ieee" else "TF32 or coarser"
        return f"{name}: multiplies in {how}"
    words = [f"sums {gradient} in {how}" for gradient, how in contract.sums.items()]
    if contract.operand:
        words.append(f"rounds {contract.operand} before the scores")
    return f"{name}: {'; '.join(words or ['sums in float32'])}"
