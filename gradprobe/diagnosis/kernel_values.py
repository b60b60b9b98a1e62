"""P, dP, dS and delta of a failing run, put together from the nodes of its kernels.

Which node is which is read off what is made of it: scores that a dot sums with k or q are dS, those that it sums with
dO are P, and dS is a product of P with dP less delta. Of what is made otherwise there is nothing in here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..frontends.triton.interpreter.dataflow import CASTS, Node, Site, behind
from ..frontends.triton.interpreter.dataflow.lanes import along
from ..inputs.memory import Array
from ..model.case import Case
from ..model.intermediates import MATRIX_OF, PRODUCTS
from .explainers.misread import culprits_of
from .follow import FollowedRun

# What a dot makes of scores and an input, and what the scores are.
_SUMMED = {PRODUCTS[gradient].other: (gradient, name) for gradient, name in MATRIX_OF.items()}
# Operations that leave scores what they are, but for a constant or a mask.
_THROUGH = (*CASTS, "select", "fmul", "fdiv", "precise_divf", "fadd")
# What a constant that fits may leave of the error without it.
_EXPLAINED = 0.01


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


@dataclass
class _Tiles:
    """One intermediate where one kernel computes it."""

    name: str
    kernel: str
    into: set[str] = field(default_factory=set)
    nodes: dict[Node, Sequence[Node]] = field(default_factory=dict)
    """Each tile, with those that it met lane by lane."""


def kernel_values(run: FollowedRun, case: Case) -> Iterator[KernelValue]:
    """What every kernel of a run computed of P, dP, delta and dS for every row and key that sees one another.

    In the order in which kernels began with it. What a kernel computed of a part alone is left out.
    """
    reader = _KernelReader(run, case)
    for tiles in sorted(reader.found.values(), key=lambda each: min(node.number for node in each.nodes)):
        values = reader.values(tiles)
        if values is not None:
            is_rounded = any(map(_is_rounded, tiles.nodes))
            yield KernelValue(tiles.name, tiles.kernel, frozenset(tiles.into), values, is_rounded)


class _KernelReader:
    """What the nodes of a run are, and their values put together."""

    def __init__(self, run: FollowedRun, case: Case) -> None:
        self.found: dict[tuple[str, Site], _Tiles] = {}
        """By name, and by the operation that makes it before constants, masks and roundings."""
        self._run, self._case = run, case
        self._culprits = frozenset(culprits_of(run.flow))
        self._tensors = {source.site: source.tensor for source in run.flow.sources}
        self._summed: set[Node] = set()
        """The scores that a dot sums."""
        steps: list[tuple[Node, str]] = []
        for node in run.flow.nodes:
            if node.site.operation == "dot" and len(node.operands) > 1:
                first, second = node.operands[:2]
                steps += [*self._read_dot(first, second), *self._read_dot(second, first)]
        for scores, gradient in steps:
            for node in behind([scores], lambda one: () if one.site.operation in ("dot", "load") else one.operands):
                if ("P", node.site) in self.found:
                    self.found["P", node.site].into.add(gradient)
        self._of_loops()

    def _of_loops(self) -> None:
        """One operation in two loops is one, where each gradient of the one is of the other."""
        for key, tiles in [*self.found.items()]:
            for other in self.found.values():
                is_alike = (tiles.name, tiles.kernel) == (other.name, other.kernel)
                if is_alike and tiles is not other and tiles.into <= other.into:
                    other.nodes |= tiles.nodes
                    del self.found[key]
                    break

    # --- what is what

    def _read_dot(self, scores: Node, other: Node) -> Iterator[tuple[Node, str]]:
        """Keeps what a dot sums; gives scores that are made of P, with the gradient that they are summed into."""
        gradient, name = _SUMMED.get(self._input(other), ("", ""))
        if not gradient or scores.lanes is None or not scores.lanes.is_matrix:
            return
        self._summed.add(scores)
        if name == "dS":
            self._read_product(scores, gradient)
        elif self._case.family == "softmax":
            self._keep(name, scores, gradient, [*_steps(scores)])
        else:
            yield scores, gradient

    def _read_product(self, ds: Node, gradient: str) -> None:
        """Keeps dS and what it is a product of: P, and dP less delta."""
        leaves = _factors(ds)
        met = [step for one in (ds, *leaves) for step in _steps(one)]
        self._keep("dS", ds, gradient, met)
        for leaf in leaves:
            *_, core = _steps(leaf)
            if core.site.operation in ("exp", "exp2"):
                self._keep("P", leaf, gradient, met)
            rows = [one for one in core.operands if one.value is not None and one.value.ndim == 1]
            scores = [one for one in core.operands if _is_scores(one) and self._is_dp(one)]
            if core.site.operation in ("fsub", "fadd") and len(rows) == len(scores) == 1:
                self._keep("dP", scores[0], gradient, [*met, *_steps(scores[0])])
                self._keep("delta", rows[0], gradient, [core, *met])

    def _keep(self, name: str, node: Node, gradient: str, met: Sequence[Node]) -> None:
        *_, core = _steps(node)
        tiles = self.found.setdefault((name, core.site), _Tiles(name, node.site.kernel))
        tiles.into.add(gradient)
        tiles.nodes.setdefault(node, met)

    def _is_dp(self, node: Node) -> bool:
        """Whether a dot of dO and v, and no other, made it, whatever became of it since."""
        made = behind([node], lambda one: () if one.site.operation == "dot" else filter(_is_scores, one.operands))
        dots = [one for one in made if one.site.operation == "dot"]
        return bool(dots) and all({*map(self._input, one.operands)} == {"do", "v"} for one in dots)

    def _input(self, node: Node) -> str:
        """The input that a tile is, by its value or by the load that it comes from."""
        while not node.name and node.site.operation in CASTS and node.operands:
            node = node.operands[0]
        return node.name or (self._tensors.get(node.site, "") if node.site.operation == "load" else "")

    # --- where it is

    def _index(self, node: Node, met: Sequence[Node]) -> list[Array] | None:
        """The batch, head, row and key of each number; of numbers of rows without the key; None where one is unknown.

        Of loads that nothing contradicts.
        """
        assert node.value is not None
        own, *others = met if node.value.ndim == 1 else (node, *met)
        lanes = self._clean(own)
        for clean in map(self._clean, others):
            if _are_laid_alike(lanes, clean):
                lanes = clean | lanes
        if not {*"bhmn"} <= lanes.keys():
            return None
        if node.value.ndim > 1:
            return [lanes[x] for x in "bhmn"]
        axis = 0 if along(lanes["m"], 0) is None else 1
        found = [at for at in (along(lanes[x], 1 - axis) for x in "bhm") if at is not None]
        return found if len(found) == len("bhm") and found[2].size == node.value.size else None

    def _clean(self, node: Node) -> dict[str, Array]:
        lanes = node.lanes
        return {x: at for x, at in lanes.at.items() if not lanes.origins[x] & self._culprits} if lanes else {}

    # --- the values

    def values(self, tiles: _Tiles) -> Array | None:
        """The last value of every element, without the constant that it is multiplied by; None where some lack.

        Of rows and keys that see nothing a kernel may hold anything, if it stores nothing of that: what it holds there
        counts where the gradient that came is made of it.
        """
        constants, known = self._run.roles.constants(tiles.name), dict[Site, float]()
        for node in tiles.nodes:
            if node.role is not None and node.name == tiles.name and np.any(node.value):
                known.setdefault(node.site, constants[node.role.factor])
        left = {node.site for node in tiles.nodes} - known.keys()
        values = self._last_values(tiles, known)
        if values is not None and left:
            # What is summed into one gradient has one constant.
            alike = [known[node.site] for node in tiles.nodes if node in self._summed and node.site in known]
            known |= dict.fromkeys(left, alike[0] if alike else self._fitting(tiles, values))
            values = self._last_values(tiles, known)
        gradient = next((one for one in ("dV", "dK", "dQ") if one in tiles.into and one in self._results), "")
        if values is None or self._case.family != "softmax" or tiles.name != MATRIX_OF.get(gradient):
            return values
        whole = self._last_values(tiles, known, keep_unseen=True)
        return min((each for each in (values, whole) if each is not None), key=lambda each: self._off(gradient, each))

    def _last_values(
        self, tiles: _Tiles, constants: Mapping[Site, float], *, keep_unseen: bool = False
    ) -> Array | None:
        valid = self._run.roles.valid
        rows = valid.any(3)
        live, needed = rows[..., None] & valid.any(2)[:, :, None], rows if tiles.name == "delta" else valid
        found, seen = np.zeros(needed.shape), np.zeros(needed.shape, bool)
        for node, met in sorted(tiles.nodes.items(), key=lambda each: each[0].number):
            at = self._index(node, met)
            if at is None or node.value is None:
                return None
            known = np.logical_and.reduce([each >= 0 for each in at])
            index = tuple(each[known] for each in at)
            values = node.value.reshape(known.shape)[known].astype(np.float64) / constants.get(node.site, 1.0)
            if tiles.name != "delta" and not (keep_unseen and node in self._summed):
                values = np.where((live if node in self._summed else valid)[index], values, 0.0)
            found[index], seen[index] = values, True
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

    def _fitting(self, tiles: _Tiles, raw: Array) -> float:
        """The constant with which dS gives the gradient that came; of another the one that leaves the least error."""
        roles = self._run.roles
        gradient = next((one for one in ("dQ", "dK") if one in tiles.into and one in self._results), "")
        came, given = roles.parts[tiles.name], raw
        if tiles.name == "dS" and gradient:
            came, given = self._results[gradient], roles.gradient(gradient, raw)
        off = {one: float(np.nansum(np.abs(given / one - came))) for one in roles.constants(tiles.name).values()}
        best = min(off, key=lambda one: off[one])
        # What is wrong anyway is shown as it is.
        return best if off[best] <= _EXPLAINED * off[1.0] else 1.0


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


def _factors(node: Node) -> list[Node]:
    """The scores that a node is a product of."""
    *_, core = _steps(node)
    if core.site.operation != "fmul" or len(core.operands) != 2 or not all(map(_is_scores, core.operands)):
        return [node]
    return [*_factors(core.operands[0]), *_factors(core.operands[1])]


def _are_laid_alike(lanes: Mapping[str, Array], others: Mapping[str, Array]) -> bool:
    """Whether rows, or keys, go along the same axis of two tiles of scores."""
    for letter in "mn":
        if letter in lanes and letter in others and lanes[letter].shape == others[letter].shape:
            return (along(lanes[letter], 0) is None) == (along(others[letter], 0) is None)
    return False
