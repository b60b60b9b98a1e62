"""P, dP, dS and delta as a followed run shows them in each of its kernels, element by element.

Which tile is which is read off what it is made into, and off its values where they are right: scores that a dot sums
with k or q are dS, those that it sums with dO are P. Of what is neither there is nothing in here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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
# Of the known values at one site, the share that must be of one intermediate; the others are tiles of zeros.
_MOSTLY = 0.5


@dataclass(frozen=True)
class SeenValue:
    """One intermediate as one kernel computed it, on the way to some gradients."""

    name: str
    kernel: str
    into: frozenset[str]
    """The gradients that it went into."""
    values: Array
    """[B, H, M, N] or [B, H, M]; 0 where a mask covers it and nothing sums over it."""
    is_rounded: bool
    """Whether some of it is what was rounded to 16 bits."""


def seen_in(run: FollowedRun, case: Case) -> list[SeenValue]:
    """What every kernel of a run computed of P, dP, delta and dS for every row and key that sees one another.

    In the order in which kernels began with it. What a kernel computed of a part alone is left out.
    """
    return list(_Reading(run, case).all())


class _Reading:
    """Names for the nodes of a flow, and their values put together."""

    def __init__(self, run: FollowedRun, case: Case) -> None:
        self._run, self._case, self._nodes = run, case, run.flow.nodes
        self._culprits = frozenset(culprits_of(run.flow))
        self._tensors = {source.site: source.tensor for source in run.flow.sources}
        self._into: dict[int, set[str]] = defaultdict(set)
        """By node, the gradients that it goes into inside its kernel."""
        self._summed: set[int] = set()
        """The scores that a dot sums."""
        self._by_structure: dict[int, str] = {}
        self._beside: dict[int, Sequence[Node]] = {}
        """By node, others that it met lane by lane."""
        self._of_rows: dict[int, Node] = {}
        """By node of numbers of rows, the scores that they were taken from."""
        self._read_dots()
        self._by_value = self._sites()

    # --- what is what

    def _read_dots(self) -> None:
        for node in self._nodes:
            for scores, other in self._scores_of_dot(node):
                gradient, name = _SUMMED[self._input(other)]
                self._into[scores.number].add(gradient)
                self._summed.add(scores.number)
                if name == "dS":
                    self._name(scores, "dS")
                    self._read_product(scores)
                elif self._case.family == "softmax":
                    self._name(scores, "P")
        for node in reversed(self._nodes):
            if node.number in self._into and node.site.operation != "load":
                for operand in node.operands:
                    if operand.site.kernel == node.site.kernel:
                        self._into[operand.number] |= self._into[node.number]

    def _name(self, node: Node, name: str) -> None:
        self._by_structure.setdefault(node.number, name)

    def _read_product(self, ds: Node) -> None:
        """Names what dS is a product of: P, and dP less delta."""
        leaves = list(_factors(ds))
        met = [*_steps(ds), *(step for leaf in leaves for step in _steps(leaf))]
        for leaf in leaves:
            core = _through(leaf)
            if core.site.operation in ("exp", "exp2"):
                self._name(leaf, "P")
            elif core.site.operation in ("fsub", "fadd") and len(core.operands) == 2:
                met += self._read_difference(core)
        for one in met:
            self._beside.setdefault(one.number, met)

    def _read_difference(self, difference: Node) -> Iterator[Node]:
        rows = [one for one in difference.operands if one.value is not None and one.value.ndim == 1]
        scores = [one for one in difference.operands if _is_scores(one) and self._is_dp(one)]
        if len(rows) == len(scores) == 1:
            self._name(scores[0], "dP")
            self._name(rows[0], "delta")
            self._of_rows[rows[0].number] = difference
            yield from _steps(scores[0])

    def _scores_of_dot(self, node: Node) -> Iterator[tuple[Node, Node]]:
        """The scores that a dot sums, and the input that it sums them with."""
        if node.site.operation == "dot" and len(node.operands) >= 2:
            left, right = node.operands[:2]
            for scores, beside in ((left, right), (right, left)):
                if scores.lanes is not None and scores.lanes.is_matrix and self._input(beside) in _SUMMED:
                    yield scores, beside

    def _is_dp(self, node: Node) -> bool:
        """Whether a dot of dO and v, and no other, made it, whatever became of it since."""
        made = behind([node], lambda one: () if one.site.operation == "dot" else filter(_is_scores, one.operands))
        dots = [one for one in made if one.site.operation == "dot"]
        return bool(dots) and all({self._input(operand) for operand in one.operands} == {"do", "v"} for one in dots)

    def _input(self, node: Node) -> str:
        """The input that a tile is, by its value or by the load that it comes from."""
        if node.name:
            return node.name
        while node.site.operation in CASTS and node.operands:
            node = node.operands[0]
        return self._tensors.get(node.site, "") if node.site.operation == "load" else ""

    def _sites(self) -> dict[Site, str]:
        """By site, the one intermediate that its values are where they are anything that is known."""
        counts: dict[Site, Counter[str]] = defaultdict(Counter)
        for node in self._nodes:
            if node.number in self._into and node.role is not None and not node.role.is_by_row and _tells(node):
                counts[node.site][node.name] += 1
        most = {site: found.most_common(1)[0] for site, found in counts.items()}
        return {site: name for site, (name, count) in most.items() if count > _MOSTLY * counts[site].total()}

    def _name_of(self, node: Node) -> str:
        known, made = self._by_value.get(node.site, ""), self._by_structure.get(node.number, "")
        if known in _UNFINISHED and made == "dS":
            return made
        return known or made

    # --- where it is

    def _lanes(self, node: Node) -> dict[str, Array] | None:
        """The batch, head, row and key of each lane, of loads that nothing contradicts; None where one is unknown."""
        assert node.value is not None
        own = self._clean(node)
        met = [_laid_as(own, self._clean(other)) for other in self._beside.get(node.number, ())]
        found: dict[str, Array] = {}
        for letter in "bhmn":
            known = (at[letter] for at in (own, *met) if letter in at and at[letter].shape == node.value.shape)
            if (values := next(known, None)) is None:
                return None
            found[letter] = values
        return found

    def _clean(self, node: Node) -> Mapping[str, Array]:
        lanes = node.lanes
        at = lanes.at if lanes is not None else {}
        return {x: each for x, each in at.items() if lanes is not None and not lanes.origins[x] & self._culprits}

    # --- the values

    def all(self) -> Iterator[SeenValue]:
        parts: dict[tuple[str, str], dict[frozenset[str], list[Node]]] = defaultdict(lambda: defaultdict(list))
        for node in self._nodes:
            into = frozenset(self._into.get(node.number, ()))
            name = self._name_of(node) if into and node.value is not None else ""
            if (name in MATRICES and _is_scores(node)) or (name == "delta" and node.number in self._of_rows):
                parts[node.site.kernel, name][into].append(node)
        for (kernel, name), found in parts.items():
            for into, nodes in _merged(found):
                values = self._put_together(name, into, nodes)
                if values is not None:
                    yield SeenValue(name, kernel, into, values, any(map(_is_rounded, nodes)))

    def _put_together(self, name: str, into: frozenset[str], nodes: Sequence[Node]) -> Array | None:
        """The last value of every element, without the constant that it is multiplied by; None where some lack.

        Of rows and keys that see nothing a kernel may hold anything, if it stores nothing of that: what it holds there
        counts where the gradient that came is made of it.
        """
        sites, constants = {node.site for node in nodes}, self._run.roles.constants(name)
        known = {site: constants[self._factors[site]] for site in sites if site in self._factors}
        values = self._last_values(name, nodes, known)
        if values is not None and len(known) < len(sites):
            # What is summed into one gradient has one constant.
            alike = [known[node.site] for node in nodes if node.number in self._summed and node.site in known]
            known = dict.fromkeys(sites, alike[0] if alike else self._fitting(name, into, values)) | known
            values = self._last_values(name, nodes, known)
        gradient = next((one for one in ("dV", "dK", "dQ") if one in into and one in self._results), "")
        if values is None or self._case.family != "softmax" or name != MATRIX_OF.get(gradient):
            return values
        whole = self._last_values(name, nodes, known, keep_unseen=True)
        return min((each for each in (values, whole) if each is not None), key=lambda each: self._off(gradient, each))

    def _off(self, gradient: str, values: Array) -> float:
        """How far a gradient that is made of P or dS is from the one that came; what is NaN in both is no error."""
        came, made = self._results[gradient], self._run.roles.gradient(gradient, values)
        error = np.where(np.isnan(came) & np.isnan(made), 0.0, np.abs(made - came))
        return float(np.where(np.isnan(error), np.inf, error).sum())

    @cached_property
    def _results(self) -> Mapping[str, Array]:
        trace = self._run.outcome.trace
        return {} if trace is None else {name: one.double().cpu().numpy() for name, one in trace.values.items()}

    def _last_values(
        self, name: str, nodes: Sequence[Node], constants: Mapping[Site, float], *, keep_unseen: bool = False
    ) -> Array | None:
        valid = self._run.roles.valid
        rows, keys = valid.any(3), valid.any(2)
        needed = rows if name == "delta" else valid
        found, seen = np.zeros(needed.shape), np.zeros(needed.shape, bool)
        for node in nodes:
            read = self._rows(node) if name == "delta" else self._scores(node)
            if read is None:
                return None
            index, values = read
            if name != "delta" and node.number not in self._summed:
                values = np.where(valid[index], values, 0.0)
            elif name != "delta" and not keep_unseen:
                b, h, m, n = index
                values = np.where(rows[b, h, m] & keys[b, h, n], values, 0.0)
            found[index], seen[index] = values / constants.get(node.site, 1.0), True
        return found if bool((seen | ~needed).all()) else None

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

    def _scores(self, node: Node) -> tuple[tuple[Array, ...], Array] | None:
        lanes = self._lanes(node)
        if lanes is None or node.value is None:
            return None
        known = np.logical_and.reduce([lanes[x] >= 0 for x in "bhmn"])
        return tuple(lanes[x][known] for x in "bhmn"), node.value[known].astype(np.float64)

    def _rows(self, node: Node) -> tuple[tuple[Array, ...], Array] | None:
        """The numbers of rows, at the rows of the scores that they are taken from."""
        of = self._of_rows[node.number]
        lanes = self._lanes(of)
        assert node.value is not None
        assert of.value is not None
        axis = _axis({} if lanes is None else lanes, "m")
        if lanes is None or axis is None or of.value.shape[axis] != node.value.size:
            return None
        at = [one for x in "bhm" if (one := along(lanes[x], 1 - axis)) is not None]
        if len(at) < 3:
            return None
        known = np.logical_and.reduce([one >= 0 for one in at])
        return tuple(one[known] for one in at), node.value.reshape(-1)[known].astype(np.float64)

    @cached_property
    def _factors(self) -> dict[Site, str]:
        """By site, what its values are multiplied by where they are right."""
        counts: dict[Site, Counter[str]] = defaultdict(Counter)
        for node in self._nodes:
            if node.role is not None and _tells(node) and node.name == self._name_of(node):
                counts[node.site][node.role.factor] += 1
        return {site: found.most_common(1)[0][0] for site, found in counts.items()}


def _merged(found: Mapping[frozenset[str], list[Node]]) -> Iterator[tuple[frozenset[str], list[Node]]]:
    """What goes into some gradients, with what goes into a part of them: a rounded copy, mostly."""
    largest = [into for into in found if not any(into < other for other in found)]
    for into in largest:
        nodes = [node for part, of_part in found.items() if part <= into for node in of_part]
        yield into, sorted(nodes, key=lambda node: node.number)


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


def _through(node: Node) -> Node:
    """The scores that a node is, before constants, masks and roundings."""
    *_, first = _steps(node)
    return first


def _factors(node: Node) -> Iterator[Node]:
    """The scores that a node is a product of."""
    core = _through(node)
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
    values = lanes.get(letter)
    varies = [axis for axis in (0, 1) if along(values, axis) is None] if values is not None and values.ndim == 2 else []
    return varies[0] if len(varies) == 1 else None
