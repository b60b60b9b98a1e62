"""Values: the first that are wrong although what they are made of is right, and what is right but for a constant."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...frontends.triton.interpreter.dataflow import CASTS, Node, Site, behind, places
from ...model.intermediates import MATRIX_OF, PRODUCTS, in_place_of, made_of
from ..follow import STORED, FollowedRun
from .diagnoses import Chain, Suspect, blamed
from .misread import is_loaded
from .sums import are_partial, pairs, summing

# What a dot over rows or keys sums an input's rows with.
_SUMMED = {PRODUCTS[name].other: in_place_of(matrix) for name, matrix in MATRIX_OF.items()}
# Scores that are steps to one that is summed over.
_STEPS = ("P * dP", "dP - delta", "dT", "P", "S", "dP", "P + tau / (i + 1)")
_MAXIMA = ("maximum of S so far", "maximum of Q K^T so far")
# Far above what exp errs by in 32 bits, and below a rounding to 16 bits.
_OF_RESCALING = 1e-4


def wrong_values(run: FollowedRun) -> Iterator[Suspect]:
    """The operations whose operands are right and whose result is not, on the way to what is wrong."""
    found = defaultdict[Site, list[tuple[Node, Node]]](list)
    for node, used_by in _first_wrong(run):
        found[node.site].append((node, used_by))
    summed = {suspect.site.kernel for suspect in pairs(run)}
    lacking, earlier = set[int](), set[str]()
    for site, tiles in sorted(found.items(), key=lambda each: min(node.number for node, _ in each[1])):
        node, used_by = tiles[0]
        lacking |= node.lacking
        suspect = _masked(run, node) or _wrong(run, node, used_by)
        if suspect.kind == "value":
            is_unsure = site.kernel in summed or _is_fine(run, site) or _is_inherited(suspect, node, earlier)
            # What a load left out is missing in all that is made of it.
            origins = node.lanes.origins.values() if node.lanes is not None else ()
            is_unsure |= any(lacking & origin for origin in origins)
            suspect = replace(suspect, is_sure=not is_unsure)
        if suspect.is_sure and suspect.kind != "pairs":
            earlier.add(site.kernel)
        yield suspect


def _is_fine(run: FollowedRun, site: Site) -> bool:
    """Whether its value is no intermediate and is right all the same: mostly, what is made of it is known."""
    unknown = [node.used for node in run.flow.nodes if node.site == site and not node.is_known]
    return bool(unknown) and 2 * sum(unknown) >= len(unknown)


def _is_inherited(suspect: Suspect, node: Node, earlier: set[str]) -> bool:
    """Whether it may be wrong by what nobody compared: a load, or a mask, that an earlier kernel made."""
    if not suspect.name and is_loaded(node):
        return True  # nobody says what it should be: not the load need be wrong
    if node.site.operation == "select" and node.site.kernel in earlier:
        return True
    is_unseen = any(operand.role is None and operand.site.operation == "load" for operand in node.operands)
    return is_unseen and bool(earlier - {node.site.kernel})


def _masked(run: FollowedRun, node: Node) -> Suspect | None:
    """The load whose mask leaves out what a wrong sum is made of."""
    if not node.lacking or node.is_known:
        return None
    source, line = run.flow.sources[max(node.lacking)], places(node.site.lines)[-1].line
    whole = [other.site for other in run.flow.sources if other is not source]
    reason = f"its mask leaves out what line {line} works on"
    return Suspect("masked", source.tensor, source.site, blamed(source.site, whole), reason)


def _wrong(run: FollowedRun, node: Node, used_by: Node) -> Suspect:
    """What is told of a wrong tile, the first of its operation."""
    name, site, role = expected(node, run), node.site, node.role
    is_met = node is not used_by
    if is_met and node.is_known and role is not None and used_by.site.operation == "load":
        at, reason = summing(node)[0], f"{role.formula} is stored before all keys are in it"
        return Suspect("pairs", node.name, at, at.lines, reason)
    is_open, is_spoilt = is_met and role is not None and role.is_open, False
    beside = dict.fromkeys(_entering(run, node))
    if role is not None and role.is_by_row:
        name = role.name.partition(",")[0]
        reason = f"{name} is off by a {'number' if name == 'S' else 'factor'} in all of a row"
    elif is_open or node.is_known:
        fault = "it is not masked where rows see no keys" if is_open else f"it is {node.name} and not yet what is due"
        reason = f"{fault}, and line {places(used_by.site.lines)[-1].line} sums over it"
    else:
        # One of its operands may be, rightly, what it should be itself.
        is_spoilt = bool(name) and name in [operand.name for operand in node.operands]
        reason = f"what is made here is not {name or 'any intermediate'}"
    if is_open:
        beside[used_by.site.lines] = None
    lines, entering = blamed(site, run.right.keys() - {site}), tuple(beside)
    return Suspect("value", name, site, lines, reason, beside=entering, is_open=is_open, is_spoilt=is_spoilt)


def expected(node: Node, run: FollowedRun) -> str:
    """What a value should be: what it is where it is right, else what is made of such operands; "" if unknown."""
    elsewhere = Counter(right.name for right in run.right.get(node.site, ()))
    if elsewhere:
        return elsewhere.most_common(1)[0][0]
    return made_of({operand.name for operand in node.operands if operand.role is not None})


def _entering(run: FollowedRun, node: Node) -> Iterator[Chain]:
    """The lines of what a wrong value was made of that may be wrong where it is compared with nothing, or with less."""
    yield from (run.flow.sources[number].site.lines for number in sorted(node.lacking))
    roles = [(operand, operand.role) for operand in node.operands]
    for operand, role in roles:
        # What is right but for a factor of its row is held to less; lazy's dP is right without its mask as well.
        is_unmasked = run.roles.case.family == "lazy" and operand.name == "dP"
        if role is None or role.is_by_row or is_unmasked:
            yield operand.site.lines
    # Scores that LSE is taken from are to be scaled where they are made, or since then.
    if any(operand.name == "LSE" for operand in node.operands):
        yield from (made.site.lines for made in behind([node], _scores) if made is not node)
    for operand, role in roles:
        if role is not None and role.is_open:  # where it is masked last, or made
            masked = (made for made in _alike(operand, "is_open") if made.site.operation == "select")
            yield next(masked, operand).site.lines
    for operand, role in roles:
        if role is not None and role.factor:  # where it got the constant that it is multiplied by
            yield [*_alike(operand, "factor")][-1].site.lines


def _scores(node: Node) -> Sequence[Node]:
    return [operand for operand in node.operands if operand.name == "Q K^T"][:1]


def _alike(node: Node, name: str) -> Iterator[Node]:
    """A value and what it was made of, as far back as their roles have something in common."""
    return behind([node], lambda user: [made for made in user.operands if getattr(made.role, name, None)][:1])


# --- the walk


def _first_wrong(run: FollowedRun) -> Iterator[tuple[Node, Node]]:
    """Every wrong node that is made of right ones, with the node that it was reached from."""
    visited, pending = set[Node](), [(stored.node, stored.node) for stored in run.stores]
    while pending:
        node, used_by = pending.pop()
        if node in visited or node.is_known:
            continue
        visited.add(node)
        wrong = [operand for operand in node.operands if _leads_on(run, node, operand)]
        unmasked = [operand for operand in node.operands if _is_not_to_be_summed(node, operand)]
        if wrong:
            pending += [(operand, node) for operand in wrong]
        elif unmasked:
            yield from ((operand, node) for operand in unmasked)
        elif node.role is not None and node.site.operation == "load" and are_partial(run, node.operands):
            yield from ((operand, node) for operand in node.operands)
        elif node.role is not None:
            yield node, used_by


def _leads_on(run: FollowedRun, node: Node, operand: Node) -> bool:
    """Whether an operand of a wrong node is wrong itself, and not yet to be masked there or later."""
    may_mask = node.site.operation == "select" or (node.role is not None and node.role.is_by_row)
    if may_mask and operand.name and operand.role is not None and operand.role.is_open:
        return False
    return not operand.is_known and not _rescales(run, operand) and _is_wrong(operand)


def _is_not_to_be_summed(node: Node, operand: Node) -> bool:
    """Whether a right value is summed over which is none to be summed: not masked, or not the one for that input."""
    role = operand.role
    if role is None or node.site.operation not in ("dot", "reduce"):
        return False
    if role.is_open or node.site.operation == "reduce" or role.name not in _STEPS:
        return role.is_open
    others = [other.name for other in node.operands if other is not operand]
    return any(name in _SUMMED and role.name not in _SUMMED[name] for name in others)


def _is_wrong(node: Node) -> bool:
    """Whether its value, or one that it was made of since anything known, was compared and is nothing that is known."""
    compared = behind([node], lambda made: made.operands if made.role is None else ())
    return any(made.role is not None and not made.is_known for made in compared)


def _rescales(run: FollowedRun, node: Node) -> bool:
    """Whether it is the factor by which a moved maximum rescales sums: exp of the old one less the new one."""
    made = node
    while made.site.operation in ("exp", "exp2", "fmul", *CASTS) and len(made.operands) == 1:
        made = made.operands[0]
    is_of_maxima = made.site.operation == "fsub" and all(operand.name in _MAXIMA for operand in made.operands)
    role = made.operands[0].role if is_of_maxima and made.operands else None
    if role is None or node.site.operation not in ("exp", "exp2") or node.value is None or made.value is None:
        return False
    scale = run.roles.x.scale if role.name == "maximum of Q K^T so far" else 1.0
    off = np.abs(node.value - np.exp(made.value * scale / run.roles.constants(role.name)[role.factor]))
    return bool((off[np.isfinite(off)] <= _OF_RESCALING).all())


# --- what is stored


def other_factors(run: FollowedRun, *, is_of_host: bool = False) -> Iterator[Suspect]:
    """Results that are stored as what they are, times another constant.

    Args:
        is_of_host: whether to look at what host code makes a result of too. It may multiply that yet, so none is sure.
    """
    found: dict[Site, tuple[str, Node, str]] = {}
    for stored in run.flow.stores:
        role = stored.node.role
        name = run.result_of(stored) if is_of_host else run.outcome.storages.get(stored.home, "")
        if name in run.wrong and role and role.is_known and role.formula != STORED.get(name, role.formula):
            found.setdefault(stored.site, (name, stored.node, role.formula))
    for site, (name, node, formula) in found.items():
        reason = f"stores {formula} as {name}; should store {STORED[name]}"
        beside = tuple(dict.fromkeys(made.site.lines for made in _multiplied(node)))
        yield Suspect("stored", name, site, site.lines[:1], reason, is_sure=not is_of_host, beside=beside)


def _multiplied(node: Node) -> Iterator[Node]:
    """What a stored sum was made by, where a factor may be missing: what multiplies it, the dot, the scores in that."""
    for made in behind([node]):
        if made.site.operation == "dot":
            yield made
            yield from (operand for operand in made.operands[:2] if not is_loaded(operand))
            return
        if made.site.operation == "fmul" and made.is_known:
            yield made
