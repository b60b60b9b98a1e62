"""Values that are wrong of right ones, and sums that lack pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, repeat
from operator import attrgetter

import numpy as np

from ...frontends.triton.interpreter.dataflow import CASTS, AccessLine, Node, Role, Site, behind
from ...inputs.memory import Array
from ...model.intermediates import (
    AXIS_WORDS,
    MATRIX_OF,
    SUMMED_WITH,
    in_place_of,
    made_of,
    title,
)
from ...model.number import plural
from ..follow import STORED, FollowedRun
from .diagnoses import Chain, Suspect, blamed
from .misread import is_loaded

_STEPS = ("P * dP", "dP - delta", "dT", "P", "S", "dP", "P + tau / (i + 1)")
_MAXIMA = {"maximum of S so far", "maximum of Q K^T so far"}
# Far above what exp errs by in 32 bits, and below a rounding to 16 bits.
_OF_RESCALING = 1e-4
_name, _home = attrgetter("name"), attrgetter("home")


@dataclass(frozen=True)
class WrongTile:
    run: FollowedRun
    node: Node
    user: Node

    @cached_property
    def name(self) -> str:
        """What it is elsewhere, or what such operands make; "" if unknown."""
        elsewhere = self.run.right.get(self.node.site)
        if elsewhere:
            return elsewhere.most_common(1)[0][0]
        known = [operand for operand in self.node.operands if operand.role is not None]
        return made_of({operand.name for operand in known})

    def suspect(self) -> Suspect:
        return self._masked() or self._of_value()

    def _masked(self) -> Suspect | None:
        node, sources = self.node, self.run.flow.sources
        if not node.lacking or node.is_known:
            return None
        source = sources[max(node.lacking)]
        whole = [other.site for other in sources if other is not source]
        reason = f"its mask leaves out what line {_line(node)} works on"
        return Suspect("masked", source.tensor, source.site, blamed(source.site, whole), reason)

    def _of_value(self) -> Suspect:
        node, name, site = self.node, self.name, self.node.site
        role = node.role or Role("")
        is_open = node is not self.user and role.is_open
        if role.is_by_row:
            name = role.name.partition(",")[0]
            by = "number" if name == "S" else "factor"
            reason = f"{name} is off by a {by} in all of a row"
        elif is_open or role.is_known:
            fault = f"it is {node.name} and not yet what is due"
            fault = "it is not masked where rows see no keys" if is_open else fault
            reason = f"{fault}, and line {_line(self.user)} sums over it"
        else:
            reason = f"what is made here is not {name or 'any intermediate'}"
        beside = dict.fromkeys((*self._entering(), *([self.user.site.lines] if is_open else [])))
        lines = blamed(site, self.run.right.keys() - {site})
        return Suspect("value", name, site, lines, reason, beside=(*beside,), is_open=is_open)

    def _entering(self) -> Iterator[Chain]:
        operands = self.node.operands
        for number in sorted(self.node.lacking):
            yield self.run.flow.sources[number].site.lines
        for operand in operands:
            # What is right but for a factor of its row is held to less; lazy's dP is right without its mask as well.
            is_unmasked = self.run.roles.case.family == "lazy" and operand.name == "dP"
            if operand.role is None or operand.role.is_by_row or is_unmasked:
                yield operand.site.lines
        # Scores that LSE is taken from are to be scaled where they are made, or since then.
        for made in behind(_scores(self.node), _scores) if "LSE" in map(_name, operands) else ():
            yield made.site.lines
        for operand in operands:  # where it is masked last, or made
            alike = [*_alike(operand, "is_open")]
            masked = [made for made in alike if made.site.operation == "select"]
            if alike:
                yield [*masked, operand][0].site.lines
        for operand in operands:  # where it got the constant that it is multiplied by
            for made in [*_alike(operand, "factor")][-1:]:
                yield made.site.lines


def _alike(node: Node, name: str) -> Iterator[Node]:
    def alike(nodes: Sequence[Node]) -> list[Node]:
        return [made for made in nodes if getattr(made.role, name, None)][:1]

    return behind(alike([node]), lambda user: alike(user.operands))


def _scores(node: Node) -> Sequence[Node]:
    return [operand for operand in node.operands if operand.name == "Q K^T"][:1]


def wrong_values(run: FollowedRun) -> Iterator[Suspect]:
    summed = {*map(attrgetter("site.kernel"), pairs(run))}
    lacking, earlier, tiles = set[int](), set[str](), dict[Site, WrongTile]()
    for tile in sorted(_first_wrong(run), key=lambda tile: tile.node.number):
        tiles.setdefault(tile.node.site, tile)
    for site, tile in tiles.items():
        suspect, node = tile.suspect(), tile.node
        lacking |= node.lacking
        if suspect.kind == "value":
            alike = [made for made in run.flow.nodes if made.site == site and not made.is_known]
            is_fine = bool(alike) and 2 * sum(map(attrgetter("used"), alike)) >= len(alike)
            # What a load left out is missing in all that is made of it.
            is_left_out = not lacking.isdisjoint(chain(*node.lanes.origins.values()))
            is_unsure = site.kernel in summed or is_left_out or is_fine
            is_unsure = is_unsure or _is_inherited(suspect, node, earlier)
            suspect = replace(suspect, is_sure=not is_unsure)
        if suspect.is_sure:
            earlier.add(site.kernel)
        yield suspect


def _is_inherited(suspect: Suspect, node: Node, earlier: set[str]) -> bool:
    if not suspect.name and is_loaded(node):
        # Nobody says what it should be: not the load need be wrong.
        return True
    if node.site.operation == "select" and node.site.kernel in earlier:
        return True
    unknown = [made.site.operation for made in node.operands if made.role is None]
    return "load" in unknown and bool(earlier - {node.site.kernel})


def _line(node: Node) -> int:
    return node.site.lines[-1].line


# --- the walk


def _first_wrong(run: FollowedRun) -> Iterator[WrongTile]:
    visited, pending = set[Node](), [(stored.node, stored.node) for stored in run.stores]
    while pending:
        node, user = pending.pop()
        if node in visited or node.is_known:
            continue
        visited.add(node)
        wrong = [*filter(partial(_leads_on, run, node), node.operands)]
        unmasked = [*filter(partial(_is_not_to_be_summed, node), node.operands)]
        if wrong:
            pending += zip(wrong, repeat(node))
        elif unmasked:
            yield from (WrongTile(run, operand, node) for operand in unmasked)
        elif node.role is not None:
            yield WrongTile(run, node, user)


def _leads_on(run: FollowedRun, node: Node, operand: Node) -> bool:
    may_mask = node.site.operation == "select" or (node.role is not None and node.role.is_by_row)
    is_open = bool(operand.name) and operand.role is not None and operand.role.is_open
    if operand.is_known or (may_mask and is_open) or _rescales(run, operand):
        return False
    compared = behind([operand], lambda made: made.operands if made.role is None else ())
    return any(made.role is not None and not made.is_known for made in compared)


def _is_not_to_be_summed(node: Node, operand: Node) -> bool:
    role = operand.role
    if role is None or node.site.operation not in ("dot", "reduce"):
        return False
    if role.is_open or node.site.operation == "reduce" or role.name not in _STEPS:
        return role.is_open
    for other in node.operands:
        gradient = SUMMED_WITH.get(other.name, "") if other is not operand else ""
        if gradient and role.name not in in_place_of(MATRIX_OF[gradient]):
            return True
    return False


def _rescales(run: FollowedRun, node: Node) -> bool:
    """Whether it is exp of the old maximum less the new one."""
    if node.site.operation not in ("exp", "exp2") or node.value is None or not node.operands:
        return False
    made = node.operands[0]
    while made.site.operation in ("fmul", *CASTS) and len(made.operands) == 1:
        made = made.operands[0]
    role = made.operands[0].role if made.operands else None
    is_of_maxima = made.site.operation == "fsub" and {*map(_name, made.operands)} <= _MAXIMA
    if role is None or made.value is None or not is_of_maxima:
        return False
    scale = run.roles.x.scale if role.name == "maximum of Q K^T so far" else 1.0
    constant = run.roles.constants(role.name)[role.factor]
    off = np.abs(node.value - np.exp(made.value * scale / constant))
    return bool((off[np.isfinite(off)] <= _OF_RESCALING).all())


# --- what is stored


def other_factors(run: FollowedRun) -> Iterator[Suspect]:
    sites = set[Site]()
    for stored in run.flow.stores:
        role, site, name = stored.node.role, stored.site, run.result_of(stored)
        if site in sites or name not in run.wrong or role is None or not role.is_known:
            continue
        if role.formula != STORED.get(name, role.formula):
            sites.add(site)
            reason = f"stores {role.formula} as {name}; should store {STORED[name]}"
            beside = dict.fromkeys(map(attrgetter("site.lines"), _multiplied(stored.node)))
            is_sure = bool(run.stored_into(stored))
            yield Suspect("stored", name, site, site.lines[:1], reason, is_sure, tuple(beside))


def _multiplied(node: Node) -> Iterator[Node]:
    for made in behind([node]):
        if made.site.operation == "dot":
            yield made
            yield from (operand for operand in made.operands[:2] if not is_loaded(operand))
            return
        if made.site.operation == "fmul" and made.is_known:
            yield made


# --- pairs of a row and a key that a sum lacks


def pairs(run: FollowedRun) -> Iterator[Suspect]:
    of_wrong = {*map(_home, run.stores)}
    for home in filter(of_wrong.__contains__, run.visits):
        stores = [stored for stored in run.flow.stores if stored.home == home]
        # [B, H, M, N] bool: the pairs that are not in what was stored.
        missing, name = run.roles.valid & (run.visits[home] == 0), run.result_of(stores[0])
        if not missing.any() or name not in run.wrong:
            continue
        stored, multiplied = [*map(attrgetter("node"), stores)], np.zeros_like(missing)
        lacking = (node for node in stored for part, _ in _lanes_of(node, missing) if part.any())
        sites = summing(next(lacking, stored[0]))
        for node in run.flow.nodes:
            for part, is_summed in _lanes_of(node, multiplied) if node.site in sites else ():
                part[is_summed] = True
        is_lost = bool((missing & multiplied).any())
        reason = left_out(missing) + ("" if is_lost else ", and no product uses them")
        lines, *beside = map(attrgetter("lines"), sites)
        yield Suspect("pairs", name, sites[0], lines, reason, beside=beside, is_lost=is_lost)


def left_out(missing: Array) -> str:
    """Args: missing: [B, H, M, N] bool."""
    b, h, m, n = np.argwhere(missing)[0]
    count = f"{int(missing.sum()):,} pairs of a row and a key are left out"
    return f"{count}, the first of row {m} and key {n} (batch {b}, head {h})"


def _lanes_of(node: Node, pairs: Array) -> Iterator[tuple[Array, Array]]:
    lanes = node.lanes.of_sum()
    if lanes is not None:
        kept, batch, index, counts = lanes
        pairs = pairs if kept == "m" else pairs.swapaxes(2, 3)
        for lane in np.flatnonzero((batch >= 0) & (index >= 0)):
            yield pairs[batch[lane], :, index[lane]], counts[lane] > 0


def nothing_summed(run: FollowedRun) -> Iterator[Suspect]:
    filled = {*map(_home, run.flow.stores)}
    for home, site in run.flow.empty.items():
        name = run.outcome.storages.get(home, "")
        if name in run.wrong and home not in filled and not run.flow.failures:
            yield Suspect("pairs", name, site, site.lines, "what is stored comes from no load")


def summing(node: Node) -> tuple[Site, ...]:
    """The dots, the last first; else reductions, or what made it."""

    def made_of(summed: Node) -> Sequence[Node]:
        if summed.site.operation == "reduce":
            return ()
        # What a dot is added to, where that is an operand of its own, was summed by others.
        return summed.operands[2:] if summed.site.operation == "dot" else summed.operands

    sites = dict.fromkeys(map(attrgetter("site"), behind([node], made_of)))
    for operation in ("dot", "reduce"):
        found = tuple(site for site in sites if site.operation == operation)
        if found:
            return found
    return (node.site,)


# --- what no program stores


def never_stored(run: FollowedRun) -> Iterator[Suspect]:
    of_numbers, by_name = {at.kernel for at in run.flow.empty.values()}, dict[str, AccessLine]()
    for access in run.flow.sources:
        name = title(access.tensor)
        # A mere number is right where no pair is seen; scores are stored where they are worked on.
        if access.is_load or name not in run.wrong or access.site.kernel in of_numbers:
            continue
        first = by_name.setdefault(name, access)
        if first is not access and first.letters == access.letters:
            filled, behind = first.filled | access.filled, first.behind & access.behind
            by_name[name] = replace(first, filled=filled, behind=behind)
    for name, store in by_name.items():
        site, never = store.site, _needed(run, store.letters) & ~store.filled
        if {"m", "n"} <= {*store.letters} or not never.any():
            continue
        at = zip(store.letters, np.argwhere(never)[0], strict=True)
        place = ", ".join(f"{AXIS_WORDS[letter]} {index}" for letter, index in at)
        many = plural(int(never.sum()), AXIS_WORDS[store.letters[-1]])
        reason = f"no program stores {many} of {name}, the first at {place}"
        beside = tuple(map(run.flow.lines.__getitem__, _placing(run, store)))
        yield Suspect("unstored", name, site, site.lines, reason, beside=beside)


def _needed(run: FollowedRun, letters: str) -> Array:
    """[of these axes] bool: where a row sees a key."""
    valid, kept = run.roles.valid, letters.replace("g", "h")
    needed = valid.any(tuple(at for at, letter in enumerate("bhmn") if letter not in kept))
    if "g" not in letters:
        return needed
    axis = letters.index("g")
    shape = (*needed.shape[:axis], run.flow.sizes["g"], -1, *needed.shape[axis + 1 :])
    return needed.reshape(shape).any(axis + 1)


def _placing(run: FollowedRun, store: AccessLine) -> list[int]:
    shared = store.behind
    for source in run.flow.sources:
        is_own = source.site.kernel == store.site.kernel and not source.is_derived
        if is_own and source.letters and (_needed(run, source.letters) & ~source.filled).any():
            shared &= source.behind
    return sorted(shared, reverse=True)
