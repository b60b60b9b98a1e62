"""P, dP, dS and delta of a failing run, put together from the nodes of its kernels, and judged.

Which node is which is read off what is made of it: scores that a dot sums with k or q are dS, those that it sums with
dO are P, and dS is a product of P with dP less delta. Of what is made otherwise there is nothing in here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from msgspec import structs

from ..frontends.triton.interpreter.dataflow import CASTS, Node, Site, behind
from ..frontends.triton.interpreter.dataflow.lanes import along
from ..inputs.memory import Array
from ..model.case import Case
from ..model.intermediates import GRADIENT_OF, MATRIX_OF, PRODUCTS, names
from ..model.layout_run import MISMATCH, Element
from ..model.mechanisms import door
from ..model.number import listed
from ..numerics.compare import compare, promoted
from ..numerics.evidence import Measured, SeenRow
from ..numerics.locate import locate
from ..numerics.tally import Finding, RisingErrors
from ..runtime.trace import Trace, expected_shapes
from .explainers.misread import culprits_of
from .follow import FollowedRun

# What a dot makes of scores and an input, and what the scores are.
_SUMMED = {PRODUCTS[gradient].other: (gradient, name) for gradient, name in MATRIX_OF.items()}
# Operations that leave scores what they are, but for a constant or a mask.
_THROUGH = (*CASTS, "select", "fmul", "fdiv", "precise_divf", "fadd")
# What a constant that fits may leave of the error without it.
_EXPLAINED = 0.01


@dataclass(eq=False)
class KernelValue:
    """One intermediate as one kernel computed it."""

    name: str
    kernel: str
    into: set[str] = field(default_factory=set)
    """The gradients that it went into."""
    tiles: dict[Node, Node] = field(default_factory=dict)
    """Each, with the scores that are summed of it."""
    summed: set[Node] = field(default_factory=set)
    """The tiles that are summed themselves."""
    values: Array = field(default_factory=lambda: np.empty(0))
    """[B, H, M, N] or [B, H, M]; 0 where a mask covers it and nothing sums over it."""


def kernel_values(run: FollowedRun, case: Case) -> list[KernelValue]:
    """What every kernel of a run computed of P, dP, delta and dS for every row and key that sees one another.

    In the order in which kernels began with it. What a kernel computed of a part alone is left out.
    """
    culprits, found = frozenset(culprits_of(run.flow)), list[KernelValue]()
    for value in sorted(_parts_of(run, case), key=lambda value: min(node.number for node in value.tiles)):
        values = _values(run, case, value, culprits)
        if values is not None:
            value.values = values
            found.append(value)
    return found


# --- what is what


def _parts_of(run: FollowedRun, case: Case) -> list[KernelValue]:
    """By name, and by the operation that makes it before constants, masks and roundings."""
    found: dict[tuple[str, Site], KernelValue] = {}
    of_lazy: list[tuple[Node, str]] = []
    for dot in run.flow.nodes:
        if dot.site.operation != "dot" or len(dot.operands) < 2:
            continue
        for scores, times in (dot.operands[:2], dot.operands[1::-1]):
            gradient, name = _SUMMED.get(_input(run, times), ("", ""))
            if not gradient or scores.lanes is None or not scores.lanes.is_matrix:
                continue
            if name == "P" and case.family == "lazy":  # it is cut off once tau is added
                of_lazy.append((scores, gradient))
                continue
            for part, node in ((name, scores), *(_factors(run, scores) if name == "dS" else ())):
                value = found.setdefault((part, _core(node).site), KernelValue(part, dot.site.kernel))
                value.into.add(gradient)
                value.tiles.setdefault(node, scores)
                value.summed |= {node} & {scores}
    for scores, gradient in of_lazy:
        for node in behind([scores], lambda one: () if one.site.operation in ("dot", "load") else one.operands):
            if ("P", node.site) in found:
                found["P", node.site].into.add(gradient)
    # One operation in two loops is one, where each gradient of the one is of the other.
    for key, value in [*found.items()]:
        for other in found.values():
            is_alike = (value.name, value.kernel) == (other.name, other.kernel)
            if is_alike and value is not other and value.into <= other.into:
                other.tiles |= value.tiles
                other.summed |= value.summed
                del found[key]
                break
    return [*found.values()]


def _core(node: Node) -> Node:
    """A node before each constant, mask and rounding."""
    while node.site.operation in _THROUGH and len(node.operands) == 1 and _is_scores(node.operands[0]):
        node = node.operands[0]
    return node


def _factors(run: FollowedRun, node: Node) -> Iterator[tuple[str, Node]]:
    """P, and dP and delta, of which a product is made."""
    core = _core(node)
    rows = [one for one in core.operands if one.value is not None and one.value.ndim == 1]
    scores = [one for one in core.operands if _is_scores(one)]
    if core.site.operation in ("exp", "exp2"):
        yield "P", node
    elif core.site.operation == "fmul" and len(scores) > 1:
        for one in scores:
            yield from _factors(run, one)
    elif core.site.operation in ("fsub", "fadd") and len(rows) == len(scores) == 1 and _is_dp(run, scores[0]):
        yield from (("dP", scores[0]), ("delta", rows[0]))


def _is_dp(run: FollowedRun, node: Node) -> bool:
    """Whether a dot of dO and v, and no other, made it, whatever became of it since."""
    made = behind([node], lambda one: () if one.site.operation == "dot" else filter(_is_scores, one.operands))
    dots = [one for one in made if one.site.operation == "dot"]
    return bool(dots) and all({_input(run, one) for one in dot.operands} == {"do", "v"} for dot in dots)


def _is_scores(node: Node) -> bool:
    return node.value is not None and node.value.ndim == 2


def _input(run: FollowedRun, node: Node) -> str:
    """The input that a tile is, by its value or by the load that it comes from."""
    while not node.name and node.site.operation in CASTS and node.operands:
        node = node.operands[0]
    if node.name or node.site.operation != "load":
        return node.name
    return next((source.tensor for source in run.flow.sources if source.site == node.site), "")


def _is_rounded(node: Node) -> bool:
    """Whether all its numbers are of 16 bits: the flow has those of bfloat16 as float32."""
    value = node.value
    if value is None or value.dtype != np.float32:
        return value is not None and value.dtype.itemsize < 4
    return bool(np.any(value)) and not np.any(np.ascontiguousarray(value).view(np.uint32) & np.uint32(0xFFFF))


# --- its values


def _values(run: FollowedRun, case: Case, value: KernelValue, culprits: frozenset[int]) -> Array | None:
    """The last value of every element, without the constant that it is multiplied by; None where some lack.

    Of rows and keys that see nothing a kernel may hold anything, if it stores nothing of that: what it holds there
    counts where the gradient that came is made of it.
    """
    valid = run.roles.valid
    rows = valid.any(3)
    live, needed = rows[..., None] & valid.any(2)[:, :, None], rows if value.name == "delta" else valid
    whole, reached = np.zeros(needed.shape), np.zeros(needed.shape, bool)
    counts, known_constants = np.zeros(needed.shape, bool), _constants(run, value)
    constant = next(iter(known_constants.values()), 1.0)
    for node in sorted(value.tiles, key=lambda node: node.number):
        at = _index(node, value.tiles[node], culprits)
        if at is None or node.value is None:
            return None
        known = np.logical_and.reduce([each >= 0 for each in at])
        index = tuple(each[known] for each in at)
        values = node.value.reshape(known.shape)[known].astype(np.float64)
        whole[index], reached[index] = values / known_constants.get(node.site, constant), True
        counts[index] = node in value.summed
    if not (reached | ~needed).all():
        return None
    if value.name == "delta":
        return whole
    values = np.where(valid | (counts & live), whole, 0.0)
    gradient = next((name for name in ("dV", "dK", "dQ") if name in value.into), "")
    if value.name == "dS" and not known_constants:
        constant = _fitting(run, gradient, values)
        values, whole = values / constant, whole / constant
    if case.family == "softmax" and MATRIX_OF[gradient] == value.name:
        whole = np.where(valid | counts, whole, 0.0)
        values = min((values, whole), key=lambda each: _off(run, gradient, each))
    return values


def _index(node: Node, scores: Node, culprits: frozenset[int]) -> list[Array] | None:
    """The batch, head, row and key of each number; of numbers of rows without the key; None where one is unknown.

    Of loads that nothing contradicts: what was misread is where the others are that it is multiplied by.
    """
    at = _clean(node if _is_scores(node) else scores, culprits)
    for made in behind([scores], lambda one: () if one.site.operation in ("dot", "load") else one.operands):
        if _is_scores(made) and _are_laid_alike(at, others := _clean(made, culprits)):
            at = others | at
    if not {*"bhmn"} <= at.keys() or node.value is None:
        return None
    if node.value.ndim > 1:
        return [at[letter] for letter in "bhmn"]
    axis = 0 if along(at["m"], 0) is None else 1
    found = [each for each in (along(at[letter], 1 - axis) for letter in "bhm") if each is not None]
    return found if len(found) == len("bhm") and found[2].size == node.value.size else None


def _clean(node: Node, culprits: frozenset[int]) -> dict[str, Array]:
    lanes = node.lanes
    return {x: at for x, at in lanes.at.items() if not lanes.origins[x] & culprits} if lanes else {}


def _are_laid_alike(lanes: Mapping[str, Array], others: Mapping[str, Array]) -> bool:
    """Whether rows, or keys, go along the same axis of two tiles of scores."""
    for letter in "mn":
        if letter in lanes and letter in others and lanes[letter].shape == others[letter].shape:
            return (along(lanes[letter], 0) is None) == (along(others[letter], 0) is None)
    return False


def _constants(run: FollowedRun, value: KernelValue) -> dict[Site, float]:
    """By operation, what it is multiplied by where it is right."""
    constants, found = run.roles.constants(value.name), dict[Site, float]()
    for node in value.tiles:
        if node.role is not None and node.name == value.name and np.any(node.value):
            found.setdefault(node.site, constants[node.role.factor])
    return found


def _fitting(run: FollowedRun, gradient: str, values: Array) -> float:
    """What it is multiplied by, as the gradient that came shows; what is wrong anyway is shown as it is."""
    constants = run.roles.constants("dS").values()
    off = {constant: _off(run, gradient, values / constant) for constant in constants}
    best = min(off, key=lambda constant: off[constant])
    return best if off[best] <= _EXPLAINED * off[1.0] else 1.0


def _off(run: FollowedRun, gradient: str, values: Array) -> float:
    """How far a gradient that is made of P or dS is from the one that came; what is NaN in both is no error."""
    assert run.outcome.trace is not None
    came = run.outcome.trace.values[gradient].double().cpu().numpy()
    made = run.roles.gradient(gradient, values)
    error = np.where(np.isnan(came) & np.isnan(made), 0.0, np.abs(made - came))
    return float(np.where(np.isnan(error), np.inf, error).sum())


# --- judged


@door("dataflow/seen")
def shown_in(case: Case, own: Measured, run: FollowedRun) -> Measured | None:
    """A run's results and what its kernels hold, judged; None where that does not show what they are made of."""
    return shown_with(case, own, kernel_values(run, case))


def shown_with(case: Case, own: Measured, seen: Sequence[KernelValue]) -> Measured | None:
    """A run's results and what was seen of its kernels, judged; None where that does not show what they are made of.

    Each gradient is judged with what its own kernel holds, so that it is called inherited where it is right given that.
    """
    seen = [one for one in seen if one.name not in own.trace.values]
    findings, gradients = own.comparison.findings, [name for name in MATRIX_OF if name in own.trace.values]
    chains = {name: _chain(case, own, name, seen) for name in gradients}
    rows = _rows(case, own, seen, chains)
    shown = {(row.finding.name, gradient) for row in rows for gradient in row.into}
    for name in [name for name in gradients if findings[name].mismatched] or gradients:
        if MATRIX_OF[name] not in own.trace.values and (MATRIX_OF[name], name) not in shown:
            return None
    if not rows or not all(_is_proved(own, row) for row in rows):
        return None
    known = dict(findings)
    for name in findings.keys() & GRADIENT_OF.values():
        for chain in [chains[name]] if name in chains else chains.values():
            known[name] = _less_blamed(known[name], chain.comparison.findings.get(name, known[name]))
    for row in rows:  # the first that is wrong stands for all of its name
        before = known.setdefault(row.finding.name, row.finding)
        if row.finding.status == MISMATCH != before.status:
            known[row.finding.name] = row.finding
    known = {name: known[name] for name in names() if name in known}
    absent = tuple(name for name in own.comparison.absent if name not in known)
    trace = replace(own.trace, sources={name: own.trace.sources.get(name, "seen") for name in known})
    comparison = promoted(replace(own.comparison, findings=known, absent=absent))
    judged = replace(own, trace=trace, comparison=comparison, rows=tuple(rows))
    return replace(judged, first=_first(judged))


def _chain(case: Case, own: Measured, gradient: str, seen: Sequence[KernelValue], *, coarse: bool = False) -> Measured:
    """A gradient with what its kernel made it of, compared: each judged by the formulas and by its own inputs."""
    values = {name: value for name, value in own.trace.values.items() if name not in MATRIX_OF or name == gradient}
    for value in seen:
        if gradient in value.into:
            # Triton's interpreter holds it on the host, also where the target's own tensors lie on a GPU.
            dtype = getattr(torch, case.dtype) if any(map(_is_rounded, value.tiles)) else torch.float32
            values[value.name] = torch.from_numpy(value.values).to(own.x.q.device, dtype)
    values = {name: values[name] for name in expected_shapes(case) if name in values}
    trace = Trace(values, dict.fromkeys(values, "seen"))
    precision = own.comparison.precision.coarser if coarse else own.comparison.precision
    comparison = compare(case, own.x, trace, precision, evaluate=own.comparison.evaluate, blame=not coarse)
    return replace(own, trace=trace, comparison=comparison)


def _rows(case: Case, own: Measured, seen: Sequence[KernelValue], chains: Mapping[str, Measured]) -> list[SeenRow]:
    """Each that was seen, judged: kernel by kernel, and in each in dataflow order."""
    found: list[SeenRow] = []
    for value in seen:
        into = tuple(name for name in names() if name in value.into)
        gradient = next((name for name in chains if name in into), "")
        if not gradient:
            continue
        measured = chains[gradient]
        if measured.comparison.findings[value.name].mismatched:
            # What a coarser arithmetic explains is held to that: what it goes into may be right all the same.
            coarse = _chain(case, own, gradient, seen, coarse=True)
            measured = measured if coarse.comparison.findings[value.name].mismatched else coarse
        found.append(SeenRow(_place(value, seen), into, measured.comparison.findings[value.name], measured))
    kernels = [row.kernel for row in found]
    return sorted(found, key=lambda row: (kernels.index(row.kernel), names().index(row.finding.name)))


def _place(value: KernelValue, seen: Sequence[KernelValue]) -> str:
    """The kernel, and what is computed for where the kernel computes it again for other gradients."""
    again = [other for other in seen if (other.name, other.kernel) == (value.name, value.kernel)]
    of = [name for name in names() if name in value.into]
    return f"{value.kernel} for {listed(of)}" if again[1:] else value.kernel


def _is_proved(own: Measured, row: SeenRow) -> bool:
    """Whether all that a row goes into is wrong wherever the row is: else it may not be what it is held for."""
    wrong = row.finding.wrong > 0
    for name in own.comparison.findings.keys() & {*row.into}:
        of_heads = own.comparison.findings[name].wrong > 0
        of_heads = of_heads.repeat_interleave(wrong.shape[1] // of_heads.shape[1], 1)
        if bool((wrong & ~of_heads).any()):
            return False
    return True


def _less_blamed(own: Finding, judged: Finding) -> Finding:
    """A finding whose wrong heads inherit where one of the two says so."""
    if not own.mismatched:
        return own
    left = own.own.minimum(judged.own)
    return replace(own, own=left, rising_own=own.rising_own if bool(left.any()) else RisingErrors())


def _first(judged: Measured) -> Element | None:
    """The first mismatch: of what belongs to the forward, of the kernels in their order, of the gradients."""
    seen = {row.finding.name for row in judged.rows}
    wrong = {name: one for name, one in judged.comparison.findings.items() if one.status == MISMATCH}
    plain = {name: one for name, one in wrong.items() if name not in seen}
    row = next((row for row in judged.rows if row.finding.status == MISMATCH), None)
    if row is None or any(names().index(name) < names().index("dQ") for name in plain):
        return locate(judged.x, judged.trace, replace(judged.comparison, findings=plain))
    alone = replace(row.measured.comparison, findings={row.finding.name: row.finding})
    element = locate(row.measured.x, row.measured.trace, alone)
    return structs.replace(element, kernel=row.kernel) if element else None
