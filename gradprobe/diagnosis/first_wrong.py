"""The first values that are wrong: their operands are right, and they are not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..model.intermediates import MATRIX_OF, PRODUCTS, in_place_of, made_of
from ..model.number import in_words, spans
from ..runtime.interpreter.dataflow import Flow, Lanes, Node, Site
from ..runtime.interpreter.memory.findings import Line, places
from .agreement import HERE, SPOILT
from .factors import ValueFactors
from .follow import Followed
from .misread import WORDS
from .seen import CASTS
from .stores import wrong_stores
from .sums import are_partial, pairs, partly
from .suspect import Suspect, blamed, share


def wrong_values(run: Followed, wrong: Sequence[str]) -> Iterator[Suspect]:
    """The operations whose operands are right and whose result is not, on the way to what is wrong."""
    found: dict[Site, tuple[Node, Node]] = {}
    numbers = defaultdict[Site, set[int]](set)
    for node, used_by in _first_wrong(run, wrong):
        found.setdefault(node.site, (node, used_by))
        numbers[node.site].add(node.number)
    compared = Counter(node.site for node in run.flow.nodes if node.role is not None)
    extents = {site: share(len(each), compared[site], "tile") for site, each in numbers.items()}
    explained = dict([*_by_masks(run.flow, found, extents), *_by_factors(run, found, extents)])
    yield from dict.fromkeys(explained.values())
    right, fine, earlier, factors = _right(run.flow), _fine(run.flow.nodes), set[str](), ValueFactors(run)
    lacking = {one.site.kernel for one in pairs(run, wrong)}
    for site in sorted(found, key=lambda site: found[site][0].number):
        node, used_by = found[site]
        if site in explained:
            earlier.add(site.kernel)
            continue
        if site.operation == "fmul" and {"do", "o"} <= {one.role.name for one in node.operands if one.role}:
            continue  # what is summed for delta, which no form is compared with
        name = expected(node, run.flow.nodes)
        if site.operation == "select" and name == "dS" and set(wrong) == {"dBias"}:
            continue  # dS in the window of the bias, which no form is
        if node is not used_by and _is_known(node) and used_by.site.operation == "load":
            yield partly(node, extents[site])
            continue
        # What is summed over as it is was to be masked before.
        is_open = node.role is not None and node.role.is_open and node is not used_by
        nodes = [run.flow.nodes[number] for number in sorted(numbers[site])]
        if node.role is not None and node.role.is_by_row:
            name, reason = _of_rows(run, nodes)
        else:
            reason = _of_summed(node, used_by) if is_open or _is_known(node) else _of_value(node, name)
        lines = blamed(site, right - {site})
        beside = tuple(dict.fromkeys(_entering(run.flow, node)))
        beside += (used_by.site.lines,) if is_open else ()
        # What is multiplied by a constant may well have had it.
        beside += tuple(one.lines for one in factors.entries(node)) if site.operation == "fmul" else ()
        is_partial = site.kernel in lacking and all(_is_of_a_part(run, one) for one in nodes)
        is_behind = bool(earlier - {site.kernel}) and _has_unseen_load(node)
        is_masked = site.operation == "select" and site.kernel in earlier  # its mask may be made of what is wrong
        is_sure = not (site in fine or is_partial or is_behind or is_masked or (not name and _is_loaded(node)))
        earlier |= {site.kernel} if is_sure else set()
        unmasked = (*([node.site.lines] if is_open else []), *dict.fromkeys(_unmasked(node)))
        yield Suspect("value", name, site, lines, reason, extents[site], is_sure, beside, unmasked=unmasked)


def _is_known(node: Node) -> bool:
    return node.role is not None and node.role.is_known


def _right(flow: Flow) -> set[Site]:
    """The operations that came to something right at least once."""
    return {node.site for node in flow.nodes if _is_known(node)}


def _by_factors(
    run: Followed, found: Mapping[Site, tuple[Node, Node]], extents: Mapping[Site, str]
) -> Iterator[tuple[Site, Suspect]]:
    """What gave an operand of a wrong value an odd factor, by the site of that value."""
    factors, told = ValueFactors(run), dict[Site, Suspect]()
    for site, (node, _) in found.items():
        culprit = None if _is_known(node) else factors.culprit(node)
        if culprit is not None:
            reason = f"line {places(site.lines)[-1].line} needs {culprit.wanted} {HERE} {culprit.words}"
            odd = culprit.node.site
            lines = blamed(odd, _right(run.flow) - {odd})
            told.setdefault(odd, Suspect("value", culprit.name, odd, lines, reason, extents[site], used=(site.lines,)))
            yield site, told[odd]
    for site, (node, _) in found.items():
        yield from ((site, told[entry]) for entry in factors.entries(node) if entry in told)


def _by_masks(
    flow: Flow, found: Mapping[Site, tuple[Node, Node]], extents: Mapping[Site, str]
) -> Iterator[tuple[Site, Suspect]]:
    """The loads whose masks leave out what a wrong value is made of, by the site of that value."""
    wrong = [site for site, (node, _) in found.items() if not _is_known(node)]
    masked = {site: {each for each in flow.gaps.get(site, ()) if each[0] not in flow.unknown} for site in wrong}
    gaps = {number for each in masked.values() for number, _ in each}
    whole = [one.site for number, one in enumerate(flow.sources) if number not in gaps]
    for site, each in masked.items():
        for number in sorted({number for number, _ in each}):
            source = flow.sources[number]
            lacking = " and ".join(f"{WORDS[letter]}s" for one, letter in sorted(each) if one == number)
            reason = f"its mask leaves out {lacking} that line {places(site.lines)[-1].line} works on"
            lines = blamed(source.site, whole)
            yield site, Suspect("masked", source.tensor, source.site, lines, reason, extents[site])


def _is_of_a_part(run: Followed, node: Node) -> bool:
    """Whether it is made of a sum that is right so far and lacks keys that its rows see: nothing that is known is."""
    sums = [one.lanes for one in node.operands if one.role is not None and one.role.name]
    return any(lanes is not None and _lacks_keys(run, lanes) for lanes in sums)


def _lacks_keys(run: Followed, lanes: Lanes) -> bool:
    cover, at = lanes.cover, lanes.at
    if cover is None or cover.letter != "n" or not {"b", "h", "m"} <= at.keys():
        return False
    others = tuple(axis for axis in range(at["m"].ndim) if axis != cover.axis)
    b, h, m = (at[x].max(others) for x in "bhm")
    inside = np.flatnonzero((b >= 0) & (h >= 0) & (m >= 0))
    seen = run.roles.valid[b[inside], h[inside], m[inside]]
    return bool((seen & (cover.counts[inside, h[inside]] == 0)).any())


def _is_loaded(node: Node) -> bool:
    """Whether it is what was loaded, of which nothing says what it should be: not the load need be wrong."""
    while node.site.operation in CASTS and len(node.operands) == 1:
        (node,) = node.operands
    return node.site.operation == "load" and not any(map(_is_known, node.operands))


def _has_unseen_load(node: Node) -> bool:
    """Whether an operand was loaded and compared with nothing: host code may have made it of what is wrong."""
    return any(one.role is None and one.site.operation == "load" for one in node.operands)


def _fine(nodes: Sequence[Node]) -> set[Site]:
    """The sites whose value is no intermediate and is right all the same: mostly, what is made of it is known."""
    used, unknown = Counter[Site](), Counter[Site]()
    for node in nodes:
        if not _is_known(node):
            unknown[node.site] += 1
            used[node.site] += node.used
    return {site for site, count in unknown.items() if 2 * used[site] >= count}


def _entering(flow: Flow, node: Node) -> Iterator[tuple[Line, ...]]:
    """The lines of what a wrong value was made of and that was compared with nothing."""
    yield from (flow.sources[number].site.lines for number in sorted(node.lacking))
    # What is right but for a factor of its row is held to less.
    unsure = (one for one in node.operands if one.role is None or one.role.is_by_row)
    yield from (operand.site.lines for operand in unsure)
    # Scores that LSE is taken from are to be scaled where they are made, or since then.
    is_scaled = any(one.role is not None and one.role.name == "LSE" for one in node.operands)
    unscaled = _named("Q K^T", node) if is_scaled else []
    while unscaled:
        yield from (one.site.lines for one in unscaled)
        unscaled = _named("Q K^T", *unscaled)


def _named(name: str, *nodes: Node) -> list[Node]:
    """The operands that are an intermediate."""
    return [one for node in nodes for one in node.operands if one.role is not None and one.role.name == name]


def _unmasked(node: Node) -> Iterator[tuple[Line, ...]]:
    """Of operands that hold something where rows do not see keys: the last mask, or else where they are made."""
    tops = [one for one in node.operands if one.role is not None and one.role.name == "maximum of Q K^T so far"]
    for operand in (*node.operands, *(one for top in tops for one in top.operands)):
        first = last = operand if operand.role is not None and operand.role.is_open else None
        while last is not None and last.site.operation != "select":
            first, last = last, next((one for one in last.operands if one.role is not None and one.role.is_open), None)
        if first is not None:
            yield (last or first).site.lines


def _first_wrong(run: Followed, wrong: Sequence[str]) -> Iterator[tuple[Node, Node]]:
    """Every wrong node that is made of right ones, with the node that it was reached from."""
    seen: set[int] = set()
    pending = [(stored.node, stored.node) for stored in wrong_stores(run, wrong)]
    while pending:
        node, used_by = pending.pop()
        if node.number in seen or _is_known(node):
            continue
        seen.add(node.number)
        unmasked = [operand for operand in node.operands if _is_not_to_be_summed(node, operand)]
        unknown = [
            operand
            for operand in node.operands
            if not (_is_known(operand) or _is_yet_to_be_masked(node, operand) or _rescales(run, operand))
            and _is_wrong(operand, node)
        ] or [*_of_wrong_rows(node)]
        if unknown:
            pending += [(operand, node) for operand in unknown]
        elif unmasked:
            yield from ((operand, node) for operand in unmasked)
        elif node.role is not None and node.site.operation == "load" and are_partial(run, node.operands):
            yield from ((operand, node) for operand in node.operands)
        elif node.role is not None:
            yield node, used_by


def _is_yet_to_be_masked(node: Node, operand: Node) -> bool:
    """Whether a mask is put on what is right where rows see keys, there or, of what has a factor of its row, later."""
    role = operand.role
    may_mask = node.site.operation == "select" or (node.role is not None and node.role.is_by_row)
    return may_mask and role is not None and role.is_open and bool(role.name)


# What a dot over rows or keys sums an input's rows with.
_SUMMED = {PRODUCTS[name].other: in_place_of(matrix) for name, matrix in MATRIX_OF.items()}


def _is_not_to_be_summed(node: Node, operand: Node) -> bool:
    """Whether a right value is summed over which is none to be summed: not masked, or not the one for that input."""
    role = operand.role
    if role is None or node.site.operation not in ("dot", "reduce"):
        return False
    partners = [one.role.name for one in node.operands if one.role is not None and one is not operand]
    wanted = [_SUMMED[name] for name in partners if name in _SUMMED]
    is_other = node.site.operation == "dot" and role.name in _STEPS and any(role.name not in one for one in wanted)
    return role.is_open or is_other


# Scores that are steps to one that is summed over.
_STEPS = ("P * dP", "dP - delta", "dT", "P", "S", "dP", "P + tau / (i + 1)")


def _is_wrong(node: Node, used_by: Node) -> bool:
    """Whether its value, or one that it was made of since anything known, was compared and is nothing that is known.

    What has a factor of its row is none too, where nothing behind it can take the factor away.
    """
    pending, seen = [(node, used_by)], set[int]()
    while pending:
        one, user = pending.pop()
        if one.number in seen:
            continue
        seen.add(one.number)
        if one.role is None or (one.role.is_by_row and not _needs_its_rows(user)):
            pending += [(operand, one) for operand in one.operands]
        elif not one.role.is_known:
            return True
    return False


# What scores meet once their rows are whole: dO and q in sums over rows, dP in dS.
_OF_WHOLE_ROWS = {"do", "q", "k", "dP", "dP - delta", "delta"}


def _needs_its_rows(user: Node) -> bool:
    """Whether it takes scores as they are: no division behind it takes a factor of their rows away."""
    beside = {one.role.name for one in user.operands if one.role is not None}
    return user.site.operation in ("dot", "fmul") and bool(beside & _OF_WHOLE_ROWS)


def _of_wrong_rows(node: Node) -> Iterator[Node]:
    """Of what has a factor of its row and should have none: the operands that have it, unless a maximum gave it."""
    if node.role is not None and node.role.is_by_row and not _is_less_a_maximum(node):
        yield from (one for one in node.operands if one.role is not None and one.role.is_by_row)


def _is_less_a_maximum(node: Node) -> bool:
    """Whether its rows have their factors of a running maximum, as a forward's have until they are divided."""
    names = {one.role.name for one in node.operands if one.role is not None}
    return bool(names & {*_MAXIMA}) or any(
        _is_less_a_maximum(one) for one in node.operands if one.role is not None and one.role.is_by_row
    )


_MAXIMA = ("maximum of S so far", "maximum of Q K^T so far")
# Far above what exp errs by in 32 bits, and below a rounding to 16 bits.
_OF_RESCALING = 1e-4


def _rescales(run: Followed, node: Node) -> bool:
    """Whether it is the factor by which a moved maximum rescales sums: exp of the old one less the new one."""
    difference = node
    while difference.site.operation in ("exp", "exp2", "fmul", *CASTS) and len(difference.operands) == 1:
        difference = difference.operands[0]
    maxima = [one.role for one in difference.operands if one.role is not None and one.role.name in _MAXIMA]
    if node.site.operation not in ("exp", "exp2") or difference.site.operation != "fsub" or not maxima:
        return False
    if len(maxima) != len(difference.operands) or node.value is None or difference.value is None:
        return False
    scale = {"maximum of Q K^T so far": run.roles.x.scale}.get(maxima[0].name, 1.0)
    moved = difference.value * scale / run.roles.constants(maxima[0].name)[maxima[0].factor]
    off = np.abs(node.value - np.exp(moved))
    return bool((off[np.isfinite(off)] <= _OF_RESCALING).all())


def _of_value(node: Node, name: str) -> str:
    known = [operand.role for operand in node.operands if operand.role is not None and operand.role.name]
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


def _of_rows(run: Followed, nodes: Sequence[Node]) -> tuple[str, str]:
    """What has one factor too many in each row, or one number: its name, and by how much it is off where."""
    role = nodes[0].role
    assert role is not None
    name = role.name.split(",")[0]
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


def expected(node: Node, nodes: Sequence[Node]) -> str:
    """What a value should be: what it is where it is right, else what is made of such operands; "" if unknown."""
    elsewhere = Counter(one.role.name for one in nodes if one.site == node.site and one.role and one.role.is_known)
    if elsewhere:
        return elsewhere.most_common(1)[0][0]
    return made_of({operand.role.name for operand in node.operands if operand.role is not None})
