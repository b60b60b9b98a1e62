"""P, dP, dS and delta of a failing run, put together from the nodes of its kernels.

Which node is which is read off its values where these are right, and off what is made of it: scores that a dot sums
with k or q are dS, those that it sums with dO are P. Of what is neither there is nothing in here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np

from ..frontends.triton.interpreter.dataflow import CASTS, Node, Site, behind
from ..frontends.triton.interpreter.dataflow.lanes import along
from ..inputs.memory import Array
from ..model.case import Case
from ..model.intermediates import MATRICES, MATRIX_OF, PRODUCTS
from .explainers.misread import culprits_of
from .follow import FollowedRun

# What a dot makes of scores and an input, and what the scores are.
_SUMMED = {PRODUCTS[gradient].other: (gradient, name) for gradient, name in MATRIX_OF.items()}
# Operations that leave scores what they are, but for a constant or a mask.
_THROUGH = (*CASTS, "select", "fmul", "fdiv", "precise_divf", "fadd")
# What is no intermediate and enters a dot in the place of one only by mistake.
_UNFINISHED = ("dT", "dP - delta")
# What a constant that fits may leave of the error without it.
_EXPLAINED = 0.01

_Entries = tuple[tuple[Array, ...], Array]


@dataclass(frozen=True)
class KernelValue:
    """One intermediate as one kernel computed it, on the way to some gradients."""

    name: str
    kernel: str
    into: frozenset[str]
    """The gradients that it went into."""
    values: Array
    """[B, H, M, N] or [B, H, M]; 0 where a mask covers it and nothing sums over it."""
    is_rounded: bool
    """Whether some of it is what was rounded to 16 bits."""


def kernel_values(run: FollowedRun, case: Case) -> Iterator[KernelValue]:
    """What every kernel of a run computed of P, dP, delta and dS for every row and key that sees one another.

    In the order in which kernels began with it. What a kernel computed of a part alone is left out.
    """
    graph, parts = _KernelGraph(run, case), dict[tuple[str, str], dict[frozenset[str], list[Node]]]()
    for node in run.flow.nodes:
        into, name = frozenset(graph.into.get(node, ())), graph.name_of(node)
        is_shown = node in graph.rows if name == "delta" else name in MATRICES and _is_scores(node)
        if into and is_shown and node.value is not None:
            parts.setdefault((node.site.kernel, name), {}).setdefault(into, []).append(node)
    for (kernel, name), found in parts.items():
        # What goes into some gradients, with what goes into a part of them: a rounded copy, mostly.
        for into in [into for into in found if not any(into < other for other in found)]:
            nodes = [node for part, of_part in found.items() if part <= into for node in of_part]
            nodes.sort(key=lambda node: node.number)
            if (values := graph.values(name, into, nodes)) is not None:
                yield KernelValue(name, kernel, into, values, any(map(_is_rounded, nodes)))


class _KernelGraph:
    """What the nodes of a run are, which gradients they go into, and their values put together."""

    def __init__(self, run: FollowedRun, case: Case) -> None:
        self._run, self._case, nodes = run, case, run.flow.nodes
        self._culprits = frozenset(culprits_of(run.flow))
        self._tensors = {source.site: source.tensor for source in run.flow.sources}
        self.into: dict[Node, set[str]] = {}
        """The gradients that a node goes into inside its kernel."""
        self.rows: dict[Node, Node] = {}
        """By node of numbers of rows, the scores that they were taken from."""
        self._summed: set[Node] = set()
        """The scores that a dot sums."""
        self._made: dict[Node, str] = {}
        """What a node is by what is made of it."""
        self._beside: dict[Node, Sequence[Node]] = {}
        """By node, others that it met lane by lane."""
        for node in nodes:
            if node.site.operation == "dot":
                self._read_dot(node)
        for node in reversed(nodes):
            for operand in node.operands if node in self.into and node.site.operation != "load" else ():
                if operand.site.kernel == node.site.kernel:
                    self.into.setdefault(operand, set()).update(self.into[node])
        tells = [node for node in nodes if node in self.into and _tells(node)]
        counts = _counts((node.site, node.name) for node in tells if node.role and not node.role.is_by_row)
        most = {site: found.most_common(1)[0] for site, found in counts.items()}
        # The others are tiles of zeros.
        self._at_sites = {site: name for site, (name, count) in most.items() if 2 * count > counts[site].total()}
        same = [(node.site, node.role.factor) for node in tells if node.role and node.name == self.name_of(node)]
        self._factors = {site: found.most_common(1)[0][0] for site, found in _counts(same).items()}

    # --- what is what

    def _read_dot(self, dot: Node) -> None:
        for scores, other in permutations(dot.operands[:2], 2):
            gradient, name = _SUMMED.get(self._input(other), ("", ""))
            if not gradient or scores.lanes is None or not scores.lanes.is_matrix:
                continue
            self.into.setdefault(scores, set()).add(gradient)
            self._summed.add(scores)
            if name == "dS" or self._case.family == "softmax":
                self._made.setdefault(scores, name)
            if name == "dS":
                self._read_product(scores)

    def _read_product(self, ds: Node) -> None:
        """Names what dS is a product of: P, and dP less delta."""
        leaves = [*_factors(ds)]
        met = [step for one in (ds, *leaves) for step in _steps(one)]
        for leaf in leaves:
            *_, core = _steps(leaf)
            rows = [one for one in core.operands if one.value is not None and one.value.ndim == 1]
            scores = [one for one in core.operands if _is_scores(one) and self._is_dp(one)]
            if core.site.operation in ("exp", "exp2"):
                self._made.setdefault(leaf, "P")
            elif core.site.operation in ("fsub", "fadd") and len(rows) == len(scores) == 1:
                self._made.setdefault(scores[0], "dP")
                self._made.setdefault(rows[0], "delta")
                self.rows[rows[0]] = core
                met += _steps(scores[0])
        for one in met:
            self._beside.setdefault(one, met)

    def _is_dp(self, node: Node) -> bool:
        """Whether a dot of dO and v, and no other, made it, whatever became of it since."""
        made = behind([node], lambda one: () if one.site.operation == "dot" else filter(_is_scores, one.operands))
        inputs = [{*map(self._input, one.operands)} for one in made if one.site.operation == "dot"]
        return bool(inputs) and all(each == {"do", "v"} for each in inputs)

    def _input(self, node: Node) -> str:
        """The input that a tile is, by its value or by the load that it comes from."""
        while not node.name and node.site.operation in CASTS and node.operands:
            node = node.operands[0]
        return node.name or (self._tensors.get(node.site, "") if node.site.operation == "load" else "")

    def name_of(self, node: Node) -> str:
        """The intermediate that it is; "" of what is none."""
        known, made = self._at_sites.get(node.site, ""), self._made.get(node, "")
        return made if made == "dS" and known in _UNFINISHED else known or made

    # --- where it is

    def _lanes(self, node: Node) -> dict[str, Array] | None:
        """The batch, head, row and key of each lane, of loads that nothing contradicts; None where one is unknown."""
        assert node.value is not None
        own, found = self._clean(node), dict[str, Array]()
        met = [own, *(_laid_as(own, self._clean(other)) for other in self._beside.get(node, ()))]
        for letter in "bhmn":
            known = [at[letter] for at in met if letter in at and at[letter].shape == node.value.shape]
            if not known:
                return None
            found[letter] = known[0]
        return found

    def _clean(self, node: Node) -> Mapping[str, Array]:
        lanes = node.lanes
        return {x: at for x, at in lanes.at.items() if not lanes.origins[x] & self._culprits} if lanes else {}

    def _entries(self, node: Node) -> _Entries | None:
        """The index of each number that is known, [B, H, M, N] or [B, H, M], and the number."""
        scores = self.rows.get(node, node)
        lanes = self._lanes(scores)
        if lanes is None or node.value is None:
            return None
        at: list[Array | None] = [lanes[x] for x in "bhmn"]
        if scores is not node:
            axis = _axis(lanes, "m")
            if axis is None or lanes["m"].shape[axis] != node.value.size:
                return None
            at = [along(lanes[x], 1 - axis) for x in "bhm"]
        index = [each for each in at if each is not None]
        known = np.logical_and.reduce([each >= 0 for each in index])
        values = node.value.reshape(known.shape)[known].astype(np.float64)
        return (tuple(each[known] for each in index), values) if len(index) == len(at) else None

    # --- the values

    def values(self, name: str, into: frozenset[str], nodes: Sequence[Node]) -> Array | None:
        """The last value of every element, without the constant that it is multiplied by; None where some lack.

        Of rows and keys that see nothing a kernel may hold anything, if it stores nothing of that: what it holds there
        counts where the gradient that came is made of it.
        """
        constants = self._run.roles.constants(name)
        known = {node.site: constants[self._factors[node.site]] for node in nodes if node.site in self._factors}
        left = {node.site for node in nodes} - known.keys()
        values = self._last_values(name, nodes, known)
        if values is not None and left:
            # What is summed into one gradient has one constant.
            alike = [known[node.site] for node in nodes if node in self._summed and node.site in known]
            known |= dict.fromkeys(left, alike[0] if alike else self._fitting(name, into, values))
            values = self._last_values(name, nodes, known)
        gradient = next((one for one in ("dV", "dK", "dQ") if one in into and one in self._results), "")
        if values is None or self._case.family != "softmax" or name != MATRIX_OF.get(gradient):
            return values
        whole = self._last_values(name, nodes, known, keep_unseen=True)
        return min((each for each in (values, whole) if each is not None), key=lambda each: self._off(gradient, each))

    def _last_values(
        self, name: str, nodes: Sequence[Node], constants: Mapping[Site, float], *, keep_unseen: bool = False
    ) -> Array | None:
        valid = self._run.roles.valid
        rows = valid.any(3)
        live, needed = rows[..., None] & valid.any(2)[:, :, None], rows if name == "delta" else valid
        found, seen = np.zeros(needed.shape), np.zeros(needed.shape, bool)
        for node in nodes:
            if (entries := self._entries(node)) is None:
                return None
            index, values = entries
            if name != "delta" and not (keep_unseen and node in self._summed):
                values = np.where((live if node in self._summed else valid)[index], values, 0.0)
            found[index], seen[index] = values / constants.get(node.site, 1.0), True
        return found if bool((seen | ~needed).all()) else None

    @cached_property
    def _results(self) -> Mapping[str, Array]:
        trace = self._run.outcome.trace
        return {} if trace is None else {name: one.double().cpu().numpy() for name, one in trace.values.items()}

    def _off(self, gradient: str, values: Array) -> float:
        """How far a gradient that is made of P or dS is from the one that came; what is NaN in both is no error."""
        came, made = self._results[gradient], self._run.roles.gradient(gradient, values)
        error = np.where(np.isnan(came) & np.isnan(made), 0.0, np.abs(made - came))
        return float(np.where(np.isnan(error), np.inf, error).sum())

    def _fitting(self, name: str, into: frozenset[str], raw: Array) -> float:
        """The constant with which dS gives the gradient that came; of another the one that leaves the least error."""
        roles = self._run.roles
        gradient = next((one for one in ("dQ", "dK") if one in into and one in self._results), "")
        came, given = roles.parts[name], raw
        if name == "dS" and gradient:
            came, given = self._results[gradient], roles.gradient(gradient, raw)
        off = {one: float(np.nansum(np.abs(given / one - came))) for one in roles.constants(name).values()}
        best = min(off, key=lambda one: off[one])
        # What is wrong anyway is shown as it is.
        return best if off[best] <= _EXPLAINED * off[1.0] else 1.0


def _counts(pairs: Iterator[tuple[Site, str]] | Sequence[tuple[Site, str]]) -> Mapping[Site, Counter[str]]:
    found: dict[Site, Counter[str]] = defaultdict(Counter)
    for site, word in pairs:
        found[site][word] += 1
    return found


def _tells(node: Node) -> bool:
    """Whether its value is known, and not 0 throughout: zeros are anything."""
    return bool(node.name) and node.value is not None and bool(np.any(node.value))


def _is_rounded(node: Node) -> bool:
    """Whether all its numbers are of 16 bits: the flow has those of bfloat16 as float32."""
    value = node.value
    if value is None or value.dtype != np.float32:
        return value is not None and value.dtype.itemsize < 4
    return bool(np.any(value)) and not np.any(np.ascontiguousarray(value).view(np.uint32) & np.uint32(0xFFFF))


def _is_scores(node: Node) -> bool:
    return node.value is not None and node.value.ndim == 2


def _steps(node: Node) -> Iterator[Node]:
    """A node, and what it was before each constant, mask and rounding."""
    yield node
    while node.site.operation in _THROUGH and len(node.operands) == 1 and _is_scores(node.operands[0]):
        node = node.operands[0]
        yield node


def _factors(node: Node) -> Iterator[Node]:
    """The scores that a node is a product of."""
    *_, core = _steps(node)
    if core.site.operation == "fmul" and len(core.operands) == 2 and all(map(_is_scores, core.operands)):
        for operand in core.operands:
            yield from _factors(operand)
    else:
        yield node


def _laid_as(own: Mapping[str, Array], other: Mapping[str, Array]) -> Mapping[str, Array]:
    """The lanes of a tile that another one met, as they lie in that; none where it is not known how they do."""
    for letter in own.keys() & other.keys() & {"m", "n"}:
        mine, theirs = _axis(own, letter), _axis(other, letter)
        if mine is not None and theirs is not None:
            return other if mine == theirs else {x: each.T for x, each in other.items()}
    return {}


def _axis(lanes: Mapping[str, Array], letter: str) -> int | None:
    """The axis of a tile along which a letter varies; None where it is not one."""
    values = lanes[letter]
    varies = [axis for axis in (0, 1) if along(values, axis) is None] if values.ndim == 2 else []
    return varies[0] if len(varies) == 1 else None
