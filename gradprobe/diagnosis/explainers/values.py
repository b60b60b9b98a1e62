"""Values: the first that are wrong although what they are made of is right, and what is right but for a constant."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from ...frontends.triton.interpreter.dataflow import CASTS, Node, Site, behind, places
from ...model.intermediates import MATRIX_OF, PRODUCTS, in_place_of, made_of
from ...model.number import in_words, spans
from ..follow import STORED, FollowedRun
from .misread import is_loaded
from .sums import are_partial, pairs, partly
from .suspect import Chain, Suspect, blamed, share

# Wrong tiles of one operation, each with what it was reached from.
_Tiles = list[tuple[Node, Node]]


def wrong_values(run: FollowedRun) -> Iterator[Suspect]:
    """The operations whose operands are right and whose result is not, on the way to what is wrong."""
    found = defaultdict[Site, _Tiles](list)
    for node, used_by in _first_wrong(run):
        found[node.site].append((node, used_by))
    compared = Counter(node.site for node in run.flow.nodes if node.role is not None)
    earlier, fine, summed = set[str](), _fine(run.flow.nodes), {one.site.kernel for one in pairs(run)}
    told, entered = set[Suspect](), set[Site]()
    lacking = {number for tiles in found.values() for node, _ in tiles for number in node.lacking}
    for site, tiles in sorted(found.items(), key=lambda each: each[1][0][0].number):
        extent, node = share(len({node for node, _ in tiles}), compared[site], "tile"), tiles[0][0]
        suspect = _masked(run, node, extent) or _wrong(run, tiles, extent)
        constants = {each.site for each in _entries(node)}
        # One constant that does not belong there is told once, where it makes something wrong first.
        if suspect is None or suspect in told or not entered.isdisjoint(constants):
            continue
        if suspect.kind == "value":
            # What was loaded and compared with nothing host code may have made of what is wrong.
            unseen = [one for one in node.operands if one.role is None and one.site.operation == "load"]
            is_behind = bool(earlier - {site.kernel}) and bool(unseen)
            is_masked = site.operation == "select" and site.kernel in earlier  # its mask may be made of what is wrong
            # Of what is loaded and is nothing that is known nobody says what it should be: not the load need be wrong.
            is_unnamed = not suspect.name and is_loaded(node)
            is_unsure = site in fine or site.kernel in summed or is_behind or is_masked or is_unnamed
            # What a load left out is missing in all that is made of it.
            is_unsure |= node.lanes is not None and any(lacking & each for each in node.lanes.origins.values())
            suspect = replace(suspect, is_sure=not is_unsure)
        if suspect.is_sure and suspect.kind != "pairs":
            earlier.add(site.kernel)
            entered |= constants if suspect.name else set()
        told.add(suspect)
        yield suspect


def _wrong(run: FollowedRun, tiles: _Tiles, extent: str) -> Suspect | None:
    """What is told of wrong tiles of one operation; None of what no form is."""
    (node, used_by), site = tiles[0], tiles[0][0].site
    name = expected(node, run)
    # What is summed for delta; and dS in the window of the bias.
    is_formless = site.operation == "fmul" and {"do", "o"} <= {one.name for one in node.operands}
    is_formless |= site.operation == "select" and name == "dS" and {*run.wrong} == {"dBias"}
    if is_formless:
        return None
    if node is not used_by and node.is_known and used_by.site.operation == "load":
        return partly(node, extent)
    # What is summed over as it is was to be masked before.
    is_open = node.role is not None and node.role.is_open and node is not used_by
    is_spoilt, inputs = False, "its inputs are right"
    if site.operation == "select":  # nothing says what a mask should be
        inputs = "it is right until that line masks it"
    if node.role is not None and node.role.is_by_row:
        name, reason = _of_rows(run, sorted({node for node, _ in tiles}, key=lambda one: one.number))
        inputs = reason
    elif is_open or node.is_known:
        fault = "it is not masked where rows see no keys" if is_open else f"it is {node.name} and not yet what is due"
        reason = f"{fault}, and line {places(used_by.site.lines)[-1].line} sums over it"
    else:
        # One of its operands may be, rightly, what it should be itself.
        is_spoilt = bool(name) and name in [operand.name for operand in node.operands]
        reason = f"what is made here is not {name or 'any intermediate'}"
    beside = (*dict.fromkeys(_entering(run, node)), *([used_by.site.lines] if is_open else []))
    return Suspect(
        "value", name, site, blamed(site, run.right.keys() - {site}), reason, extent, inputs,
        beside=beside, is_open=is_open, is_spoilt=is_spoilt,
    )  # fmt: skip


def _masked(run: FollowedRun, node: Node, extent: str) -> Suspect | None:
    """The load whose mask leaves out what a wrong sum is made of."""
    if not node.lacking or node.is_known:
        return None
    source, line = run.flow.sources[max(node.lacking)], places(node.site.lines)[-1].line
    whole = [one.site for one in run.flow.sources if one is not source]
    reason = f"its mask leaves out what line {line} works on"
    return Suspect("masked", source.tensor, source.site, blamed(source.site, whole), reason, extent)


def _fine(nodes: Sequence[Node]) -> set[Site]:
    """The sites whose value is no intermediate and is right all the same: mostly, what is made of it is known."""
    used, unknown = Counter[Site](), Counter[Site]()
    for node in (one for one in nodes if not one.is_known):
        unknown[node.site] += 1
        used[node.site] += node.used
    return {site for site, count in unknown.items() if 2 * used[site] >= count}


def _entering(run: FollowedRun, node: Node) -> Iterator[Chain]:
    """The lines of what a wrong value was made of that may be wrong where it is compared with nothing, or with less."""
    yield from (run.flow.sources[number].site.lines for number in sorted(node.lacking))
    # What is right but for a factor of its row is held to less.
    yield from (one.site.lines for one in node.operands if one.role is None or one.role.is_by_row)
    # Lazy's dP is right before its mask by the ReLU as well, where the mask may be missing.
    if run.roles.case.family == "lazy":
        yield from (one.site.lines for one in node.operands if one.name == "dP")
    # Scores that LSE is taken from are to be scaled where they are made, or since then.
    unscaled = [node] if any(one.name == "LSE" for one in node.operands) else []
    while unscaled := [one for of in unscaled for one in of.operands if one.name == "Q K^T"]:
        yield from (one.site.lines for one in unscaled)
    for role, operand in ((one.role, one) for one in node.operands if one.role is not None):
        if role.is_open:  # where it is masked last, or made
            masked = (one for one in _alike(operand, "is_open") if one.site.operation == "select")
            yield next(masked, operand).site.lines
    yield from (one.site.lines for one in _entries(node))


def _entries(node: Node) -> Iterator[Node]:
    """Where the operands of a value got the constants that they are multiplied by."""
    scaled = (one for one in node.operands if one.role is not None and one.role.factor)
    yield from ([*_alike(one, "factor")][-1] for one in scaled)


def _alike(node: Node, name: str) -> Iterator[Node]:
    """A value and what it was made of, as far back as their roles have something in common."""
    last: Node | None = node
    while last is not None:
        yield last
        same = [one for one in last.operands if one.role is not None and getattr(one.role, name)]
        last = same[0] if same else None


# --- the walk


def _first_wrong(run: FollowedRun) -> Iterator[tuple[Node, Node]]:
    """Every wrong node that is made of right ones, with the node that it was reached from."""
    seen, pending = set[Node](), [(stored.node, stored.node) for stored in run.stores]
    while pending:
        node, used_by = pending.pop()
        if node in seen or node.is_known:
            continue
        seen.add(node)
        unmasked = [operand for operand in node.operands if _is_not_to_be_summed(node, operand)]
        unknown = [operand for operand in node.operands if _leads_on(run, node, operand)]
        # What has a factor of its row and should have none got it where its operands did, unless from a maximum.
        if not unknown and node.role is not None and node.role.is_by_row and not _is_less_a_maximum(node):
            unknown = _by_row(node)
        if unknown:
            pending += [(operand, node) for operand in unknown]
        elif unmasked:
            yield from ((operand, node) for operand in unmasked)
        elif node.role is not None and node.site.operation == "load" and are_partial(run, node.operands):
            yield from ((operand, node) for operand in node.operands)
        elif node.role is not None:
            yield node, used_by


def _leads_on(run: FollowedRun, node: Node, operand: Node) -> bool:
    """Whether an operand of a wrong node is wrong itself, and not yet to be masked there or later."""
    role = operand.role
    may_mask = node.site.operation == "select" or (node.role is not None and node.role.is_by_row)
    is_to_be_masked = may_mask and role is not None and role.is_open and bool(role.name)
    return not operand.is_known and not is_to_be_masked and not _rescales(run, operand) and _is_wrong(operand, node)


# What a dot over rows or keys sums an input's rows with.
_SUMMED = {PRODUCTS[name].other: in_place_of(matrix) for name, matrix in MATRIX_OF.items()}
# Scores that are steps to one that is summed over.
_STEPS = ("P * dP", "dP - delta", "dT", "P", "S", "dP", "P + tau / (i + 1)")


def _is_not_to_be_summed(node: Node, operand: Node) -> bool:
    """Whether a right value is summed over which is none to be summed: not masked, or not the one for that input."""
    role = operand.role
    if role is None or node.site.operation not in ("dot", "reduce"):
        return False
    wanted = [_SUMMED[one.name] for one in node.operands if one is not operand and one.name in _SUMMED]
    is_other = node.site.operation == "dot" and role.name in _STEPS and any(role.name not in one for one in wanted)
    return role.is_open or is_other


# What scores meet once their rows are whole: dO and q in sums over rows, dP in dS.
_OF_WHOLE_ROWS = {"do", "q", "k", "dP", "dP - delta", "delta"}


def _is_wrong(node: Node, used_by: Node) -> bool:
    """Whether its value, or one that it was made of since anything known, was compared and is nothing that is known.

    What has a factor of its row is none too, where nothing behind it can take the factor away.
    """
    pending, seen = [(node, used_by)], set[Node]()
    while pending:
        value, user = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        # In these no division behind takes a factor of the rows away.
        needs_its_rows = user.site.operation in ("dot", "fmul") and any(x.name in _OF_WHOLE_ROWS for x in user.operands)
        if value.role is None or (value.role.is_by_row and not needs_its_rows):
            pending += [(operand, value) for operand in value.operands]
        elif not value.role.is_known:
            return True
    return False


def _by_row(node: Node) -> list[Node]:
    """The operands that have a factor of their row."""
    return [one for one in node.operands if one.role is not None and one.role.is_by_row]


def _is_less_a_maximum(node: Node) -> bool:
    """Whether its rows have their factors of a running maximum, as a forward's have until they are divided."""
    return any(one.name in _MAXIMA for one in node.operands) or any(map(_is_less_a_maximum, _by_row(node)))


_MAXIMA = ("maximum of S so far", "maximum of Q K^T so far")
# Far above what exp errs by in 32 bits, and below a rounding to 16 bits.
_OF_RESCALING = 1e-4


def _rescales(run: FollowedRun, node: Node) -> bool:
    """Whether it is the factor by which a moved maximum rescales sums: exp of the old one less the new one."""
    difference = node
    while difference.site.operation in ("exp", "exp2", "fmul", *CASTS) and len(difference.operands) == 1:
        difference = difference.operands[0]
    role, names = difference.operands[0].role if difference.operands else None, [x.name for x in difference.operands]
    is_of_maxima = difference.site.operation == "fsub" and all(name in _MAXIMA for name in names)
    if role is None or not is_of_maxima or node.value is None or difference.value is None:
        return False
    scale = run.roles.x.scale if role.name == "maximum of Q K^T so far" else 1.0
    off = np.abs(node.value - np.exp(difference.value * scale / run.roles.constants(role.name)[role.factor]))
    return node.site.operation in ("exp", "exp2") and bool((off[np.isfinite(off)] <= _OF_RESCALING).all())


# Rows that are off by less than this share of the worst are not told.
_TOLD = 1e-3


def _of_rows(run: FollowedRun, nodes: Sequence[Node]) -> tuple[str, str]:
    """What has one factor too many in each row, or one number: its name, and by how much it is off where."""
    name = nodes[0].name.split(",")[0]
    none = 1.0 if name == "P" else 0.0
    every = {row: value for node in nodes for row, value in run.roles.by_row(node).items() if np.isfinite(value)}
    least = _TOLD * max((abs(value - none) for value in every.values()), default=0.0)
    off = {row: value for row, value in sorted(every.items()) if abs(value - none) > least}
    if not off:
        return name, f"{name} is off by one number in each row"
    low, high, rows = min(off.values()), max(off.values()), f"rows {in_words(spans(off), 4)}"
    number = f"{low:.4g}" if high - low <= 1e-3 * max(abs(low), abs(high)) else f"{low:.4g} to {high:.4g}"
    by, of_p = ("the factor ", "") if name == "P" else ("", ", and so P by a factor")
    return name, f"{name} is off by {by}{number} in all of a row{of_p}, in {rows}"


def expected(node: Node, run: FollowedRun) -> str:
    """What a value should be: what it is where it is right, else what is made of such operands; "" if unknown."""
    elsewhere = Counter(one.name for one in run.right.get(node.site, ()))
    if elsewhere:
        return elsewhere.most_common(1)[0][0]
    return made_of({operand.name for operand in node.operands if operand.role is not None})


# --- what is stored


def not_numbers(run: FollowedRun) -> Iterator[Suspect]:
    """The operations that make NaN of numbers, on the way to a result that holds NaN."""
    found = Counter[Site]()
    stored = [one.node for one in run.stores if one.has_nan]
    for node in behind(stored, lambda node: [one for one in node.operands if one.has_nan]):
        is_made_here = node.site.operation != "load" and not any(one.has_nan for one in node.operands)
        # What was compared and is nothing that is known is wrong before it makes NaN.
        compared = [one.role for one in node.operands if one.role is not None]
        found[node.site] += is_made_here and all(role.name or role.is_by_row for role in compared)
    for site, count in found.items():
        if count:
            extent = share(count, run.tiles[site], "tile")
            yield Suspect("value", "NaN", site, site.lines, "it turns numbers into NaN", extent)


def other_factors(run: FollowedRun, *, is_of_host: bool = False) -> Iterator[Suspect]:
    """Results that are stored as what they are, times another constant.

    Args:
        is_of_host: whether to look at what host code makes a result of too. It may multiply that yet, so none is sure.
    """
    found = defaultdict[Site, list[tuple[str, Node]]](list)
    for stored in run.flow.stores:
        role = stored.node.role
        name = run.result_of(stored) if is_of_host else run.outcome.storages.get(stored.home, "")
        if name in run.wrong and name in STORED and role and role.is_known and role.formula != STORED[name]:
            found[stored.site].append((name, stored.node))
    tiles = Counter(stored.site for stored in run.flow.stores)
    for site, ((name, node), *others) in found.items():
        assert node.role is not None
        reason = f"stores {node.role.formula} as {name}; should store {STORED[name]}"
        extent = share(1 + len(others), tiles[site], "tile")
        beside = tuple(dict.fromkeys(one.site.lines for one in _made_of(node)))
        yield Suspect("stored", name, site, site.lines[:1], reason, extent, is_sure=not is_of_host, beside=beside)


def _made_of(node: Node) -> Iterator[Node]:
    """What a stored sum was made by, where a factor may be missing: what multiplies it, the dot, the scores in that."""
    way = takewhile(lambda one: one.site.operation != "dot", behind([node]))
    yield from (one for one in way if one.site.operation == "fmul" and one.is_known)
    for dot in [one for one in behind([node]) if one.site.operation == "dot"][:1]:
        yield dot
        yield from (one for one in dot.operands[:2] if not is_loaded(one))
