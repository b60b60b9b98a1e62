"""P, dP, dS and delta of a failing run, put together from the nodes of its kernels, and judged.

Which node is which is read off what is made of it: scores that a dot sums with k or q are dS, those that it sums with
dO are P, and dS is a product of P with dP less delta. Of what is made otherwise there is nothing in here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

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
from ..probing.experiment import MOST_INTERPRETED, Experiment
from ..probing.runs import RunRecord
from ..runtime.trace import Trace, expected_shapes
from .dataflow import seen_in_dataflow
from .explainers.misread import culprits_of
from .follow import FollowedRun

# What a dot makes of scores and an input, and what the scores are.
_SUMMED = {PRODUCTS[gradient].other: (gradient, name) for gradient, name in MATRIX_OF.items()}
# Operations that leave scores what they are, but for a constant or a mask.
_THROUGH = (*CASTS, "select", "fmul", "fdiv", "precise_divf", "fadd")


@dataclass(eq=False)
class KernelValue:
    """One intermediate as one kernel computed it."""

    name: str
    kernel: str
    into: set[str] = field(default_factory=set)
    """The gradients that it went into."""
    tiles: dict[Node, Node] = field(default_factory=dict)
    """Each, with the scores that are summed of it: itself, or what is made of it."""
    values: Array = field(default_factory=lambda: np.empty(0))
    """[B, H, M, N] or [B, H, M]; 0 where a mask covers it and nothing sums over it."""


def with_kernel_values(experiment: Experiment, records: Sequence[RunRecord]) -> tuple[list[RunRecord], bool]:
    """The records with what the kernels of the first that fails hold, and whether that is all that it hides.

    It is run once more in its layout, and followed; where that does not show P or dS of every gradient that is wrong,
    what was followed stays for the diagnosis.
    """
    case = experiment.case
    is_small = experiment.reference is None and case.scores <= MOST_INTERPRETED
    for at, record in enumerate(records):
        run, measured = record.run, record.run.measured if record.run is not None else None
        if run is None or measured is None or case.cu_seqlens_q or case.dropout or not (case.recover and is_small):
            continue
        if measured.is_recoverable and not measured.comparison.matches and not measured.coarser:
            experiment.tick(f"following {run.layout}", 0.0, f"{run.layout}, followed")
            with experiment.stopwatch.timed("compare"):
                watched = seen_in_dataflow(experiment, run, partial(shown_in, case, measured))
            followed = replace(record, run=replace(run, watched=watched))
            return [*records[:at], followed, *records[at + 1 :]], watched.shown is not None
    return [*records], False


def kernel_values(run: FollowedRun, case: Case) -> list[KernelValue]:
    """What every kernel of a run computed of P, dP, delta and dS for every row and key that sees one another.

    In the order in which kernels began with it. What a kernel computed of a part alone is left out.
    """
    culprits, found = frozenset(culprits_of(run.flow)), list[KernelValue]()
    for value in sorted(_parts_of(run, case), key=lambda value: min(node.number for node in value.tiles)):
        values = _values(run, value, culprits)
        if values is not None:
            found.append(replace(value, values=values))
    return found


# --- what is what


def _parts_of(run: FollowedRun, case: Case) -> list[KernelValue]:
    """By name, and by the operation that makes it before constants, masks and roundings."""
    found: dict[tuple[str, Site], KernelValue] = {}
    of_lazy: list[tuple[Node, str]] = []
    for dot in (node for node in run.flow.nodes if node.site.operation == "dot" and len(node.operands) > 1):
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
                value.tiles[node] = node if node is scores else value.tiles.get(node, scores)
    for scores, gradient in of_lazy:
        for node in behind([scores], _until_summed):
            if ("P", node.site) in found:
                found["P", node.site].into.add(gradient)
    return _joined([*found.values()])


def _joined(values: Sequence[KernelValue]) -> list[KernelValue]:
    """One operation in two loops is one, where each gradient of the one is of the other."""
    left = [*values]
    for value in values:
        for other in left:
            is_alike = (value.name, value.kernel) == (other.name, other.kernel)
            if is_alike and value is not other and value.into <= other.into:
                other.tiles |= value.tiles
                left.remove(value)
                break
    return left


def _until_summed(node: Node) -> Sequence[Node]:
    return () if node.site.operation in ("dot", "load") else node.operands


def _core(node: Node) -> Node:
    """A node before each constant, mask and rounding."""
    while node.site.operation in _THROUGH and len(node.operands) == 1 and _is_scores(node.operands[0]):
        node = node.operands[0]
    return node


def _factors(run: FollowedRun, node: Node) -> Iterator[tuple[str, Node]]:
    """P, and dP and delta, of which a product is made."""
    core = _core(node)
    rows = [made for made in core.operands if made.value is not None and made.value.ndim == 1]
    scores = [made for made in core.operands if _is_scores(made)]
    if core.site.operation in ("exp", "exp2"):
        yield "P", node
    elif core.site.operation == "fmul" and len(scores) > 1:
        for made in scores:
            yield from _factors(run, made)
    elif core.site.operation in ("fsub", "fadd") and len(rows) == len(scores) == 1 and _is_dp(run, scores[0]):
        yield from (("dP", scores[0]), ("delta", rows[0]))


def _is_dp(run: FollowedRun, node: Node) -> bool:
    """Whether a dot of dO and v, and no other, made it, whatever became of it since."""
    made = behind([node], lambda made: () if made.site.operation == "dot" else filter(_is_scores, made.operands))
    dots = [{_input(run, operand) for operand in made.operands} for made in made if made.site.operation == "dot"]
    return bool(dots) and all(inputs == {"do", "v"} for inputs in dots)


def _is_scores(node: Node) -> bool:
    return node.value is not None and node.value.ndim == 2


def _input(run: FollowedRun, node: Node) -> str:
    """The input that a tile is, by its value or by the load that it comes from."""
    while not node.name and node.site.operation in CASTS and node.operands:
        node = node.operands[0]
    if node.name or node.site.operation != "load":
        return node.name
    return next((source.tensor for source in run.flow.sources if source.site == node.site), "")


# --- its values


def _values(run: FollowedRun, value: KernelValue, culprits: frozenset[int]) -> Array | None:
    """The last value of every element, without the constant that it is multiplied by; None where some lack.

    What a mask covers counts where it is summed into a row, or key, of a gradient that sees something, or is stored: of
    others a kernel may hold anything.
    """
    valid = run.roles.valid
    needed = valid.any(3) if value.name == "delta" else valid
    whole, reached, is_summed = np.zeros(needed.shape), np.zeros(needed.shape, bool), np.zeros(needed.shape, bool)
    constants = _constants(run, value)
    other = next(iter(constants.values()), 1.0)
    for node in sorted(value.tiles, key=lambda node: node.number):
        at = _index(node, value.tiles[node], culprits)
        if at is None or node.value is None:
            return None
        known = np.logical_and.reduce([each >= 0 for each in at])
        index = tuple(each[known] for each in at)
        values = node.value.reshape(known.shape)[known].astype(np.float64)
        whole[index], reached[index] = values / constants.get(node.site, other), True
        is_summed[index] = value.tiles[node] is node
    if not (reached | ~needed).all():
        return None
    if value.name == "delta":
        return whole
    is_live, trace = np.zeros_like(valid), run.outcome.trace
    assert trace is not None
    for gradient in value.into:
        is_stored = (trace.values[gradient] != 0).any(-1).cpu().numpy()
        is_stored = np.repeat(is_stored, valid.shape[1] // is_stored.shape[1], 1)
        if PRODUCTS[gradient].is_transposed:
            is_live |= (valid.any(2) | is_stored)[:, :, None]
        else:
            is_live |= (valid.any(3) | is_stored)[..., None]
    return np.where(valid | (is_summed & is_live), whole, 0.0)


def _index(node: Node, scores: Node, culprits: frozenset[int]) -> list[Array] | None:
    """The batch, head, row and key of each number; of numbers of rows without the key; None where one is unknown.

    Of loads that nothing contradicts: what was misread is where the others are that it is multiplied by.
    """
    at = _clean(node if _is_scores(node) else scores, culprits)
    for made in filter(_is_scores, behind([scores], _until_summed)):
        others = _clean(made, culprits)
        if _are_laid_alike(at, others):
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
    """By operation, what it is multiplied by where it is right; of a dS that is right nowhere, since its product."""
    constants, found = run.roles.constants(value.name), dict[Site, float]()
    for node in value.tiles:
        if node.role is not None and node.name == value.name and np.any(node.value):
            found.setdefault(node.site, constants[node.role.factor])
    for node in value.tiles if value.name == "dS" and not found else ():
        got, made = node.value, _core(node).value
        if got is not None and made is not None and got.shape == made.shape and np.any(got):
            kept = np.isfinite(got) & np.isfinite(made) & (got != 0)  # a mask covers what is 0
            of, by = made[kept].astype(np.float64), got[kept].astype(np.float64)
            factor = float(by @ of) / float(of @ of) if of.any() else 1.0
            nearest = min(constants.values(), key=lambda constant: abs(constant - factor))
            # Rounding moves a factor of many numbers by less than a hundredth.
            found.setdefault(node.site, nearest if abs(nearest - factor) <= 0.01 * abs(nearest) else 1.0)
    return found


# --- judged


@door("dataflow/seen")
def shown_in(case: Case, own: Measured, run: FollowedRun) -> Measured | None:
    """A run's results and what its kernels hold, judged; None where that does not show what they are made of."""
    return shown_with(case, own, kernel_values(run, case))


def shown_with(case: Case, own: Measured, seen: Sequence[KernelValue]) -> Measured | None:
    """A run's results and what was seen of its kernels, judged; None where that does not show what they are made of.

    Each gradient is judged with what its own kernel holds, so that it is called inherited where it is right given that.
    """
    findings, gradients = own.comparison.findings, [name for name in MATRIX_OF if name in own.trace.values]
    seen = [value for value in seen if value.name not in own.trace.values]
    chains = {name: _chain(case, own, name, seen) for name in gradients}
    rows = _rows(case, own, seen, chains)
    shown = {(row.finding.name, gradient) for row in rows for gradient in row.into}
    for name in [name for name in gradients if findings[name].mismatched] or gradients:
        if MATRIX_OF[name] not in own.trace.values and (MATRIX_OF[name], name) not in shown:
            return None
    if not rows or not all(_is_proved(own, row) for row in rows):
        return None
    known = dict(findings)
    for chain in chains.values():  # what is right given what its kernel holds is inherited
        for name, finding in chain.comparison.findings.items():
            if name in GRADIENT_OF.values() and finding.own.sum() < known[name].own.sum():
                known[name] = finding
    for row in rows:  # the first that is wrong stands for all of its name
        before = known.setdefault(row.finding.name, row.finding)
        if row.finding.status == MISMATCH != before.status:
            known[row.finding.name] = row.finding
    known = {name: known[name] for name in names() if name in known}
    absent = tuple(name for name in own.comparison.absent if name not in known)
    trace = replace(own.trace, sources={name: own.trace.sources.get(name, "seen") for name in known})
    comparison = promoted(replace(own.comparison, findings=known, absent=absent))
    whole = replace(own, trace=trace, comparison=comparison, rows=tuple(rows))
    return replace(whole, first=_first(whole))


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


def _is_rounded(node: Node) -> bool:
    """Whether all its numbers are of 16 bits: the flow has those of bfloat16 as float32."""
    value = node.value
    if value is None or value.dtype != np.float32:
        return value is not None and value.dtype.itemsize < 4
    return bool(np.any(value)) and not np.any(np.ascontiguousarray(value).view(np.uint32) & np.uint32(0xFFFF))


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
        again = [other for other in seen if (other.name, other.kernel) == (value.name, value.kernel)]
        kernel = f"{value.kernel} for {listed(into)}" if again[1:] else value.kernel
        found.append(SeenRow(kernel, into, measured.comparison.findings[value.name], measured))
    kernels = [row.kernel for row in found]
    return sorted(found, key=lambda row: (kernels.index(row.kernel), names().index(row.finding.name)))


def _is_proved(own: Measured, row: SeenRow) -> bool:
    """Whether all that a row goes into is wrong wherever the row is: else it may not be what it is held for."""
    wrong = row.finding.wrong > 0
    for name in own.comparison.findings.keys() & {*row.into}:
        of_heads = own.comparison.findings[name].wrong > 0
        of_heads = of_heads.repeat_interleave(wrong.shape[1] // of_heads.shape[1], 1)
        if bool((wrong & ~of_heads).any()):
            return False
    return True


def _first(judged: Measured) -> Element | None:
    """The first mismatch: of what belongs to the forward, of the kernels in their order, of the gradients."""
    seen = {row.finding.name for row in judged.rows}
    wrong = {name: finding for name, finding in judged.comparison.findings.items() if finding.status == MISMATCH}
    plain = {name: finding for name, finding in wrong.items() if name not in seen}
    row = next((row for row in judged.rows if row.finding.status == MISMATCH), None)
    if row is None or any(names().index(name) < names().index("dQ") for name in plain):
        return locate(judged.x, judged.trace, replace(judged.comparison, findings=plain))
    alone = replace(row.measured.comparison, findings={row.finding.name: row.finding})
    element = locate(row.measured.x, row.measured.trace, alone)
    return structs.replace(element, kernel=row.kernel) if element else None
