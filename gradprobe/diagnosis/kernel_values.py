"""P, dP, dS and delta of a failing run, read off its kernels and judged."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, repeat
from operator import attrgetter

import numpy as np
import torch
from msgspec import structs

from ..frontends.triton.interpreter.dataflow import CASTS, Node, Site, behind
from ..frontends.triton.interpreter.dataflow.lanes import along
from ..inputs.memory import Array
from ..model.case import Case
from ..model.intermediates import GRADIENT_OF, MATRIX_OF, PRODUCTS, SUMMED_WITH, names
from ..model.layout_run import MISMATCH, Element
from ..model.number import listed
from ..numerics.compare import compare, promoted
from ..numerics.evidence import MeasuredRun, SeenRow
from ..numerics.locate import locate
from ..probing.experiment import MOST_INTERPRETED, Experiment
from ..probing.runs import RunRecord
from ..runtime.run import Trace
from .dataflow import seen_in_dataflow
from .explainers.misread import culprits_of
from .follow import FollowedRun
from .roles import elements

_number = attrgetter("number")
_THROUGH = (*CASTS, "select", "fmul", "fdiv", "precise_divf", "fadd")


@dataclass(eq=False)
class KernelValue:
    name: str
    kernel: str
    into: set[str] = field(default_factory=set)
    sites: set[Site] = field(default_factory=set)
    # With the scores that are summed of each.
    tiles: dict[Node, Node] = field(default_factory=dict)
    # [B, H, M, N] or [B, H, M]; 0 where a mask covers it and nothing sums over it.
    values: Array = field(default_factory=lambda: np.empty(0))


def with_kernel_values(
    experiment: Experiment, records: Sequence[RunRecord]
) -> tuple[list[RunRecord], bool]:
    """The first that fails with its kernels' values, and whether that is all."""
    case = experiment.case
    is_small = experiment.reference is None and case.scores <= MOST_INTERPRETED
    is_asked = is_small and case.recover and not case.dropout
    for at, record in enumerate(records if is_asked else ()):
        run, measured = record.run, record.run.measured
        if measured is None or not measured.is_recoverable or measured.coarser:
            continue
        if not measured.comparison.matches:
            experiment.tick(f"following {run.layout}", 0.0, f"{run.layout}, followed")
            with experiment.stopwatch.timed("compare"):
                watched = seen_in_dataflow(experiment, run, partial(shown_in, case, measured))
            followed = replace(record, run=replace(run, watched=watched))
            return [*records[:at], followed, *records[at + 1 :]], watched.shown is not None
    return [*records], False


def kernel_values(run: FollowedRun, case: Case) -> list[KernelValue]:
    culprits, found = culprits_of(run.flow).keys(), list[KernelValue]()
    for value in _parts_of(run, case):
        values = _values(run, value, culprits)
        found += [] if values is None else [replace(value, values=values)]
    return sorted(found, key=lambda value: min(map(_number, value.tiles)))


# --- what is what: scores that a dot sums with k or q are dS, with dO P; dS is a product of P with dP less delta


def _parts_of(run: FollowedRun, case: Case) -> list[KernelValue]:
    found: list[KernelValue] = []
    for dot in run.flow.nodes:
        is_dot = dot.site.operation == "dot" and len(dot.operands) > 1
        for scores, other in (dot.operands[:2], dot.operands[1::-1]) if is_dot else ():
            gradient = SUMMED_WITH.get(_input(run, other), "")
            if not gradient or not scores.lanes.is_matrix:
                continue
            name = MATRIX_OF[gradient]
            parts = {scores: name} | (_factors(scores) if name == "dS" else {})
            if name == "P" and case.family == "lazy":  # before tau is added, and it is cut off
                made = filter(_is_exponential, behind([scores], _until_summed))
                parts = dict.fromkeys(islice(made, 1), name)
            for node, part in parts.items():
                _kernel_value(found, part, node, gradient).tiles.setdefault(node, scores)
    return found


def _kernel_value(found: list[KernelValue], name: str, node: Node, gradient: str) -> KernelValue:
    site = _core(node).site
    for value in reversed(found):
        is_alike = gradient in value.into or site in value.sites
        if is_alike and (value.name, value.kernel) == (name, site.kernel):
            break
    else:
        value = KernelValue(name, site.kernel)
        found.append(value)
    value.into.add(gradient)
    value.sites.add(site)
    return value


def _has(node: Node, axes: int) -> bool:
    return node.value is not None and node.value.ndim == axes


def _is_exponential(node: Node) -> bool:
    return node.site.operation in ("exp", "exp2")


def _until_summed(node: Node) -> Sequence[Node]:
    return () if node.site.operation in ("dot", "load") else node.operands


def _core(node: Node) -> Node:
    operands = node.operands if node.site.operation in _THROUGH else ()
    return _core(operands[0]) if len(operands) == 1 and _has(operands[0], 2) else node


def _factors(node: Node) -> dict[Node, str]:
    core, found = _core(node), dict[Node, str]()
    scores = [made for made in core.operands if _has(made, 2)]
    rows = [made for made in core.operands if _has(made, 1)]
    if _is_exponential(core):
        found[node] = "P"
    elif core.site.operation == "fmul" and len(scores) > 1:
        for made in scores:
            found |= _factors(made)
    elif core.site.operation in ("fsub", "fadd") and len(rows) == len(scores) == 1:
        found |= {scores[0]: "dP", rows[0]: "delta"}
    return found


def _input(run: FollowedRun, node: Node) -> str:
    while not node.name and node.site.operation in CASTS and node.operands:
        node = node.operands[0]
    if node.name or node.site.operation != "load":
        return node.name
    return next((source.tensor for source in run.flow.sources if source.site == node.site), "")


# --- its values


def _values(run: FollowedRun, value: KernelValue, culprits: Set[int]) -> Array | None:
    valid, trace, constants = run.roles.valid, run.outcome.trace, _constants(run, value)
    needed = valid.any(3) if value.name == "delta" else valid
    whole, reached, is_summed = np.zeros((3, needed.size))
    for node in sorted(value.tiles, key=_number):
        at = _lanes(node, value.tiles[node], culprits)
        if at is None or node.value is None:
            return None
        index, known = elements(at, "bhmn"[: needed.ndim], needed.shape)
        constant = constants.get(node.site, next(iter(constants.values()), 1.0))
        whole[index] = node.value.reshape(known.shape)[known].astype(np.float64) / constant
        reached[index], is_summed[index] = 1, value.tiles[node] is node
    if not reached[needed.ravel()].all():
        return None
    whole, is_live = whole.reshape(needed.shape), np.zeros_like(valid)
    if needed is not valid:
        return whole
    assert trace is not None
    # What a mask covers counts where it is summed into a row, or key, that sees something or is stored.
    for gradient in value.into:
        axis = 2 if PRODUCTS[gradient].is_transposed else 3
        is_stored = (trace.values[gradient] != 0).any(-1).cpu().numpy()
        is_stored = np.repeat(is_stored, valid.shape[1] // is_stored.shape[1], 1)
        is_live |= np.expand_dims(valid.any(axis) | is_stored, axis)
    return np.where(valid | ((is_summed > 0).reshape(valid.shape) & is_live), whole, 0.0)


def _lanes(node: Node, scores: Node, culprits: Set[int]) -> Mapping[str, Array] | None:
    is_own = "m" in node.lanes.at and culprits.isdisjoint(node.lanes.origins["m"])
    # The scores may be transposed on the way into their dot.
    axis = _rows_along(node if is_own and _has(node, 2) else scores)
    for made in behind([node, scores], _until_summed):
        is_known = _has(made, 2) and {*"bhmn"} <= made.lanes.at.keys()
        if not is_known or _rows_along(made) != axis:
            continue
        at, origins = made.lanes.at, made.lanes.origins
        if not culprits.isdisjoint(chain(*map(origins.__getitem__, "bhmn"))):
            continue
        if _has(node, 2):
            return at
        return {letter: at[letter].max(1 - axis) for letter in "bhm"}
    return None


def _rows_along(scores: Node) -> int:
    rows = scores.lanes.at.get("m")
    return 0 if rows is None or along(rows, 0) is None else 1


def _constants(run: FollowedRun, value: KernelValue) -> dict[Site, float]:
    constants, found = run.roles.constants(value.name), dict[Site, float]()
    for node in value.tiles:
        if node.role is not None and node.name == value.name and np.any(node.value):
            found.setdefault(node.site, constants[node.role.factor])
    for node in () if found else value.tiles:
        got, made = node.value, _core(node).value
        if got is None or made is None or got.shape != made.shape:
            continue
        kept = np.isfinite(got) & np.isfinite(made) & (got != 0)  # a mask covers what is 0
        of, by = made[kept].astype(np.float64), got[kept].astype(np.float64)
        if of.any():
            factor = float(by @ of) / float(of @ of)
            nearest = min(constants.values(), key=lambda constant: abs(constant - factor))
            # Rounding moves a factor of many numbers by less than a hundredth.
            is_near = abs(nearest - factor) <= 0.01 * abs(nearest)
            found.setdefault(node.site, nearest if is_near else 1.0)
    return found


# --- judged


def shown_in(case: Case, own: MeasuredRun, run: FollowedRun) -> MeasuredRun | None:
    """None where gradients are made of others."""
    return shown_with(case, own, kernel_values(run, case))


def shown_with(case: Case, own: MeasuredRun, seen: Sequence[KernelValue]) -> MeasuredRun | None:
    given, findings, chains = own.trace.values, own.comparison.findings, dict[str, MeasuredRun]()
    seen = [value for value in seen if value.name not in given]
    for name in filter(given.__contains__, MATRIX_OF):
        chains[name] = _chain(case, own, name, seen)
    rows = _rows(case, own, seen, chains)
    held, wrong = set[tuple[str, str]](), list[str]()
    for row in rows:
        held |= {*zip(repeat(row.finding.name), row.into)}
    for name in chains:
        if findings[name].mismatched:
            wrong.append(name)
    for name in wrong or chains:
        if MATRIX_OF[name] not in given and (MATRIX_OF[name], name) not in held:
            return None
    if not rows or not all(map(partial(_is_proved, own), rows)):
        return None
    known = dict(findings)
    # What is right given what its kernel holds is inherited.
    for measured in chains.values():
        for name, finding in measured.comparison.findings.items():
            if name in GRADIENT_OF.values() and finding.own.sum() < known[name].own.sum():
                known[name] = finding
    for row in rows:  # the first that is wrong stands for its name
        finding = row.finding
        before = known.setdefault(finding.name, finding)
        if finding.status == MISMATCH != before.status:
            known[finding.name] = finding
    known = {name: known[name] for name in names() if name in known}
    absent = tuple(name for name in own.comparison.absent if name not in known)
    trace = replace(own.trace, sources={**dict.fromkeys(known, "seen"), **own.trace.sources})
    comparison = promoted(replace(own.comparison, findings=known, absent=absent))
    whole = replace(own, trace=trace, comparison=comparison, rows=tuple(rows))
    return replace(whole, first=_first(whole))


def _chain(
    case: Case, own: MeasuredRun, gradient: str, seen: Sequence[KernelValue], *, coarse: bool = False
) -> MeasuredRun:  # fmt: skip
    others, before = MATRIX_OF.keys() - {gradient}, own.comparison
    values = {name: value for name, value in own.trace.values.items() if name not in others}
    for value in seen:
        if gradient in value.into:
            is_rounded = any(map(_is_rounded, value.tiles))
            dtype = getattr(torch, case.dtype) if is_rounded else torch.float32
            # Triton's interpreter holds it on the host, also where the target's own tensors lie on a GPU.
            values[value.name] = torch.from_numpy(value.values).to(own.x.q.device, dtype)
    trace = Trace(values, dict.fromkeys(values, "seen"))
    precision = before.precision.coarser if coarse else before.precision
    about = case, own.x, trace, precision
    comparison = compare(*about, evaluate=before.evaluate, blame=not coarse)
    return replace(own, trace=trace, comparison=comparison)


def _is_rounded(node: Node) -> bool:
    """bfloat16 comes as float32."""
    value = node.value
    if value is None or value.dtype != np.float32:
        return value is not None and value.dtype.itemsize < 4
    bits = np.ascontiguousarray(value).view(np.uint32)
    return bool(np.any(value)) and not np.any(bits & np.uint32(0xFFFF))


def _rows(
    case: Case, own: MeasuredRun, seen: Sequence[KernelValue], chains: Mapping[str, MeasuredRun]
) -> list[SeenRow]:
    found, kernels = list[SeenRow](), dict[str, int]()
    times = Counter(map(attrgetter("name", "kernel"), seen))
    for value in seen:
        into = tuple(sorted(value.into & chains.keys(), key=names().index))
        if into:
            is_again, measured = times[value.name, value.kernel] > 1, chains[into[0]]
            kernel = f"{value.kernel} for {listed(into)}" if is_again else value.kernel
            kernels.setdefault(kernel, len(kernels))
            if measured.comparison.findings[value.name].mismatched:
                # What a coarser arithmetic explains is held to that: what it goes into may be right all the same.
                coarse = _chain(case, own, into[0], seen, coarse=True)
                is_coarse = not coarse.comparison.findings[value.name].mismatched
                measured = coarse if is_coarse else measured
            finding = measured.comparison.findings[value.name]
            found.append(SeenRow(kernel, into, finding, measured))
    return sorted(found, key=lambda row: (kernels[row.kernel], names().index(row.finding.name)))


def _is_proved(own: MeasuredRun, row: SeenRow) -> bool:
    wrong = row.finding.wrong > 0
    for name in row.into:
        of_heads = own.comparison.findings[name].wrong > 0
        of_heads = of_heads.repeat_interleave(wrong.shape[1] // of_heads.shape[1], 1)
        if bool((wrong & ~of_heads).any()):
            return False
    return True


def _first(judged: MeasuredRun) -> Element | None:
    findings, rows = judged.comparison.findings, judged.rows
    seen = {row.finding.name for row in rows}
    wrong = [name for name in findings if findings[name].status == MISMATCH and name not in seen]
    row = next((row for row in rows if row.finding.status == MISMATCH), None)
    if row is None or {*wrong}.intersection(names()[: names().index("dQ")]):
        own = {name: findings[name] for name in wrong}
        return locate(judged.x, judged.trace, replace(judged.comparison, findings=own))
    alone = replace(row.measured.comparison, findings={row.finding.name: row.finding})
    element = locate(row.measured.x, row.measured.trace, alone)
    return structs.replace(element, kernel=row.kernel) if element else None
