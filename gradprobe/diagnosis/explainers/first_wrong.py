"""The first values that are wrong: their operands are right, and they are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...model.intermediates import AXIS_WORDS, MATRIX_OF, PRODUCTS, in_place_of, made_of
from ...model.number import in_words, spans
from ...runtime.interpreter.dataflow import CASTS, Lanes, Node, Site
from ...runtime.interpreter.memory.findings import places
from ..agreement import HERE, SPOILT
from ..follow import FollowedRun
from .factors import entries, odd_factor
from .sums import are_partial, pairs, partly
from .suspect import Chain, Suspect, blamed, share

# Wrong tiles of one operation, each with what it was reached from.
_Tiles = list[tuple[Node, Node]]


def wrong_values(run: FollowedRun) -> Iterator[Suspect]:
    """The operations whose operands are right and whose result is not, on the way to what is wrong."""
    found: dict[Site, _Tiles] = {}
    for node, used_by in _first_wrong(run):
        found.setdefault(node.site, []).append((node, used_by))
    compared = Counter(node.site for node in run.flow.nodes if node.role is not None)
    extents = {site: share(len({node for node, _ in tiles}), compared[site], "tile") for site, tiles in found.items()}
    explained = dict([*_by_masks(run, found, extents), *_by_factors(run, found, extents)])
    yield from dict.fromkeys(explained.values())
    earlier, fine, lacking = set[str](), _fine(run.flow.nodes), {one.site.kernel for one in pairs(run)}
    for site in sorted(found, key=lambda site: found[site][0][0].number):
        if site in explained:
            earlier.add(site.kernel)
        elif (suspect := _suspect(run, found[site], extents[site])) is not None:
            nodes = [node for node, _ in found[site]]
            is_partial = site.kernel in lacking and all(_is_of_a_part(run, node) for node in nodes)
            # What was loaded and compared with nothing host code may have made of what is wrong.
            unseen = [one for one in nodes[0].operands if one.role is None and one.site.operation == "load"]
            is_behind = bool(earlier - {site.kernel}) and bool(unseen)
            is_masked = site.operation == "select" and site.kernel in earlier  # its mask may be made of what is wrong
            is_unsure = site in fine or is_partial or is_behind or is_masked
            is_unsure |= not suspect.name and _is_loaded(nodes[0])
            if suspect.kind == "value":
                suspect = replace(suspect, is_sure=not is_unsure)
                earlier |= {site.kernel} if suspect.is_sure else set()
            yield suspect


def _suspect(run: FollowedRun, tiles: _Tiles, extent: str) -> Suspect | None:
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
    if node.role is not None and node.role.is_by_row:
        name, reason = _of_rows(run, sorted({node for node, _ in tiles}, key=lambda one: one.number))
    else:
        reason = _of_summed(node, used_by) if is_open or node.is_known else _of_value(node, name)
    beside = tuple(dict.fromkeys(_entering(run, node)))
    beside += (used_by.site.lines,) if is_open else ()
    # What is multiplied by a constant may well have had it.
    beside += tuple(one.lines for one in entries(node)) if site.operation == "fmul" else ()
    unmasked = (*([site.lines] if is_open else []), *dict.fromkeys(_unmasked(node)))
    lines = blamed(site, run.right.keys() - {site})
    return Suspect("value", name, site, lines, reason, extent, beside=beside, unmasked=unmasked)


def _by_factors(
    run: FollowedRun, found: Mapping[Site, _Tiles], extents: Mapping[Site, str]
) -> Iterator[tuple[Site, Suspect]]:
    """What gave an operand of a wrong value an odd factor, by the site of that value."""
    told = dict[Site, Suspect]()
    for site, ((node, _), *_) in found.items():
        odd, wanted = (None if node.is_known else odd_factor(run, node)) or (node, "")
        if wanted and odd.role is not None:
            reason = f"line {places(site.lines)[-1].line} needs {wanted} {HERE} {odd.role.formula}"
            lines = blamed(odd.site, run.right.keys() - {odd.site})
            suspect = Suspect("value", odd.name, odd.site, lines, reason, extents[site], used=(site.lines,))
            yield site, told.setdefault(odd.site, suspect)
    for site, ((node, _), *_) in found.items():
        yield from ((site, told[entry]) for entry in entries(node) if entry in told)


def _by_masks(
    run: FollowedRun, found: Mapping[Site, _Tiles], extents: Mapping[Site, str]
) -> Iterator[tuple[Site, Suspect]]:
    """The loads whose masks leave out what a wrong value is made of, by the site of that value."""
    flow, wrong = run.flow, [site for site, ((node, _), *_) in found.items() if not node.is_known]
    masked = {site: {each for each in flow.gaps.get(site, ()) if each[0] not in flow.unknown} for site in wrong}
    gaps = {number for each in masked.values() for number, _ in each}
    whole = [one.site for number, one in enumerate(flow.sources) if number not in gaps]
    for site, each in masked.items():
        for number in sorted({number for number, _ in each}):
            source = flow.sources[number]
            lacking = " and ".join(f"{AXIS_WORDS[letter]}s" for one, letter in sorted(each) if one == number)
            reason = f"its mask leaves out {lacking} that line {places(site.lines)[-1].line} works on"
            lines = blamed(source.site, whole)
            yield site, Suspect("masked", source.tensor, source.site, lines, reason, extents[site])


def _is_of_a_part(run: FollowedRun, node: Node) -> bool:
    """Whether it is made of a sum that is right so far and lacks keys that its rows see: nothing that is known is."""
    return any(_lacks_keys(run, one.lanes) for one in node.operands if one.name)


def _lacks_keys(run: FollowedRun, lanes: Lanes | None) -> bool:
    found = lanes.of_sum() if lanes is not None else None
    if lanes is None or found is None or found[0] != "m" or "h" not in lanes.at or lanes.cover is None:
        return False
    _, b, m, counts = found
    h = lanes.at["h"].max(tuple(axis for axis in range(lanes.at["h"].ndim) if axis != lanes.cover.axis))
    inside = np.flatnonzero((b >= 0) & (h >= 0) & (m >= 0))
    seen = run.roles.valid[b[inside], h[inside], m[inside]]
    return bool((seen & (counts[inside, h[inside]] == 0)).any())


def _is_loaded(node: Node) -> bool:
    """Whether it is what was loaded, of which nothing says what it should be: not the load need be wrong."""
    while node.site.operation in CASTS and len(node.operands) == 1:
        (node,) = node.operands
    return node.site.operation == "load" and not any(one.is_known for one in node.operands)


def _fine(nodes: Sequence[Node]) -> set[Site]:
    """The sites whose value is no intermediate and is right all the same: mostly, what is made of it is known."""
    used, unknown = Counter[Site](), Counter[Site]()
    for node in nodes:
        if not node.is_known:
            unknown[node.site] += 1
            used[node.site] += node.used
    return {site for site, count in unknown.items() if 2 * used[site] >= count}


def _entering(run: FollowedRun, node: Node) -> Iterator[Chain]:
    """The lines of what a wrong value was made of and that was compared with nothing."""
    yield from (run.flow.sources[number].site.lines for number in sorted(node.lacking))
    # What is right but for a factor of its row is held to less.
    yield from (one.site.lines for one in node.operands if one.role is None or one.role.is_by_row)
    # Scores that LSE is taken from are to be scaled where they are made, or since then.
    unscaled = [node] if any(one.name == "LSE" for one in node.operands) else []
    while unscaled := [one for of in unscaled for one in of.operands if one.name == "Q K^T"]:
        yield from (one.site.lines for one in unscaled)


def _unmasked(node: Node) -> Iterator[Chain]:
    """Of operands that hold something where rows do not see keys: the last mask, or else where they are made."""
    tops = [one for one in node.operands if one.name == "maximum of Q K^T so far"]
    for operand in (*node.operands, *(one for top in tops for one in top.operands)):
        first = last = operand if operand.role is not None and operand.role.is_open else None
        while last is not None and last.site.operation != "select":
            first, last = last, next((one for one in last.operands if one.role is not None and one.role.is_open), None)
        if first is not None:
            yield (last or first).site.lines


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
    """Whether an operand of a wrong node is wrong itself."""
    if operand.is_known or _is_yet_to_be_masked(node, operand) or _rescales(run, operand):
        return False
    return _is_wrong(operand, node)


def _is_yet_to_be_masked(node: Node, operand: Node) -> bool:
    """Whether a mask is put on what is right where rows see keys, there or, of what has a factor of its row, later."""
    role = operand.role
    may_mask = node.site.operation == "select" or (node.role is not None and node.role.is_by_row)
    return may_mask and role is not None and role.is_open and bool(role.name)


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


_MAXIMA = ("maximum of S so far", "maximum of Q K^T so far")


def _is_less_a_maximum(node: Node) -> bool:
    """Whether its rows have their factors of a running maximum, as a forward's have until they are divided."""
    return any(one.name in _MAXIMA for one in node.operands) or any(map(_is_less_a_maximum, _by_row(node)))


# Far above what exp errs by in 32 bits, and below a rounding to 16 bits.
_OF_RESCALING = 1e-4


def _rescales(run: FollowedRun, node: Node) -> bool:
    """Whether it is the factor by which a moved maximum rescales sums: exp of the old one less the new one."""
    difference = node
    while difference.site.operation in ("exp", "exp2", "fmul", *CASTS) and len(difference.operands) == 1:
        difference = difference.operands[0]
    maxima = [one.role for one in difference.operands if one.role is not None and one.name in _MAXIMA]
    if node.site.operation not in ("exp", "exp2") or difference.site.operation != "fsub" or not maxima:
        return False
    if len(maxima) != len(difference.operands) or node.value is None or difference.value is None:
        return False
    scale = run.roles.x.scale if maxima[0].name == "maximum of Q K^T so far" else 1.0
    moved = difference.value * scale / run.roles.constants(maxima[0].name)[maxima[0].factor]
    off = np.abs(node.value - np.exp(moved))
    return bool((off[np.isfinite(off)] <= _OF_RESCALING).all())


# --- in words


def _of_value(node: Node, name: str) -> str:
    known = [operand.role for operand in node.operands if operand.role is not None and operand.name]
    if name and name in [role.name for role in known]:
        return f"{name} {SPOILT}"
    right = " and ".join(dict.fromkeys(role.formula for role in known))
    is_wrong = f"is not {name}" if name else "is no intermediate, nor a step to one"
    if not right:
        return f"what is made here {is_wrong}"
    are, them = ("are", "them") if " and " in right else ("is", "it")
    where = " where rows see keys, not masked elsewhere" if any(role.is_open for role in known) else ""
    return f"{right} {are} right{where}, and the value made of {them} {is_wrong}"


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


def _of_summed(node: Node, used_by: Node) -> str:
    assert node.role is not None
    sums = f"line {places(used_by.site.lines)[-1].line} sums over it"
    if node.role.is_open:
        return f"{node.role.formula} is not masked where rows see no keys, and {sums}"
    return f"it is {node.role.formula} and not yet what is due, and {sums}"


def expected(node: Node, run: FollowedRun) -> str:
    """What a value should be: what it is where it is right, else what is made of such operands; "" if unknown."""
    elsewhere = Counter(one.name for one in run.right.get(node.site, ()))
    if elsewhere:
        return elsewhere.most_common(1)[0][0]
    return made_of({operand.name for operand in node.operands if operand.role is not None})
