"""Suspects: the operations of a failing run that go wrong although what they work on is right."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..inputs.memory import Array
from ..model.number import plural
from ..runtime.interpreter.dataflow import Conflict, Flow, Node, Site, Stored
from ..runtime.interpreter.memory.findings import Line, places
from .factors import STORED, Factors
from .follow import Followed


@dataclass(frozen=True)
class Suspect:
    """One operation that goes wrong although what it works on is right."""

    kind: str
    """load, store: it reads, or writes, other elements than it should; masked: it leaves out what is needed; value: its
    operands are right and its result is not; stored: it is right but for a constant; pairs: rows and keys are left out
    of what is stored, or counted twice.
    """
    name: str
    """The intermediate that is wrong there, or the tensor that is misread; "" where it is not known."""
    site: Site
    lines: tuple[Line, ...]
    """Those of the site up to the one that is the fault: of a helper that is right elsewhere, its caller's."""
    reason: str
    """One sentence."""
    extent: str
    """How often of how often it was seen to: "4 of 4 tiles", or of the times that it meets another."""
    is_sure: bool = True
    """Whether it goes wrong whenever it runs, or what is made of it is wrong too."""
    beside: tuple[tuple[Line, ...], ...] = ()
    """Where that is made which enters there: of an access, its address alone; of a value, what was compared with
    nothing, such as an offset, a term or a mask; of pairs, the other dots that sum them."""


def suspects(run: Followed, wrong: Sequence[str]) -> list[Suspect]:
    """What goes wrong by itself, the first first.

    Args:
        wrong: the results that are wrong.
    """
    found = [*_transposed(run.flow)] or [*misread(run.flow)] or [*_not_numbers(run, wrong)]
    if not found:
        found = [*_values(run, wrong), *_factors(run, wrong)]
    if not any(one.is_sure for one in found):
        found += [*_pairs(run, wrong), *_nothing_summed(run, wrong)]
    found = found or [*_factors(run, wrong, of_host=True)]
    # A value whose name is known says more than one that is nothing that is known.
    return sorted(found, key=lambda one: (not one.is_sure, not one.name))


# --- loads


def misread(flow: Flow) -> Iterator[Suspect]:
    """The loads and stores whose indices disagree with those of most others that they meet."""
    culprits = culprits_of(flow)
    right = [source.site for number, source in enumerate(flow.sources) if number not in culprits]
    for number, conflicts in culprits.items():
        source, conflict = flow.sources[number], min(conflicts, key=lambda one: "bhmndegw".find(one.letter[0]))
        reason = _of_conflict(flow, number, conflict)
        kind = "load" if source.site.operation == "load" else "store"
        count = sum(one.letter == conflict.letter for one in conflicts)
        extent = share(count, count + flow.agreed[number, conflict.letter], "time")
        beside = tuple(_addressing(flow, number, culprits))
        yield Suspect(kind, source.tensor, source.site, blamed(source.site, right), reason, extent, beside=beside)


def share(count: int, total: int, noun: str) -> str:
    return f"{count:,} of {plural(total, noun)}"


def _addressing(flow: Flow, culprit: int, culprits: Iterable[int]) -> Iterator[tuple[Line, ...]]:
    """The lines that made the address of a misread access and that of no right one, the last first."""
    right = frozenset[int]().union(*(behind for number, behind in flow.slices.items() if number not in culprits))
    yield from (flow.lines[number] for number in sorted(flow.slices.get(culprit, frozenset()) - right, reverse=True))


def culprits_of(flow: Flow) -> dict[int, list[Conflict]]:
    """The loads and stores that disagree with most others, by number, with what they disagree in."""
    left = list(flow.conflicts)
    culprits: dict[int, list[Conflict]] = {}
    while left:
        culprit = _culprit(flow, left)
        culprits[culprit] = [one for one in left if culprit in one.left | one.right]
        left = [one for one in left if culprit not in one.left | one.right]
    return culprits


def _culprit(flow: Flow, conflicts: Sequence[Conflict]) -> int:
    """Of two that disagree the one that stands alone; among equals one that reads no block, or that agrees least."""
    votes, letters = defaultdict[int, float](float), set[tuple[int, str]]()
    for one in conflicts:
        for side in (one.left, one.right):
            for number in side:
                votes[number] += 1 / len(side)
                letters.add((number, one.letter))
    agreed = Counter[int]()
    for number, letter in letters:
        agreed[number] += flow.agreed[number, letter]
    return max(votes, key=lambda number: (votes[number], number in flow.irregular, -agreed[number], number))


def _transposed(flow: Flow) -> Iterator[Suspect]:
    """The dots that sum over one axis on their left and over another on their right."""
    found = [one for one in flow.conflicts if "/" in one.letter and not (one.left | one.right) & flow.irregular]
    sites = {one.site: one for one in reversed(found)}
    dots = Counter(node.site for node in flow.nodes)
    for site, conflict in sites.items():
        one, other = (WORDS[letter] for letter in conflict.letter.split("/"))
        reason = f"the dot sums over {one}s on its left and over {other}s on its right"
        extent = share(sum(one.site == site for one in found), dots[site], "tile")
        yield Suspect("value", "", site, site.lines, reason, extent)


WORDS = {"b": "batch", "h": "head", "g": "key head", "m": "row", "n": "key", "d": "dim", "e": "dim", "w": "distance"}


def _of_conflict(flow: Flow, culprit: int, conflict: Conflict) -> str:
    here, there = conflict.example if culprit in conflict.left else conflict.example[::-1]
    others = conflict.right if culprit in conflict.left else conflict.left
    names = " and ".join(sorted({flow.sources[number].tensor for number in others}))
    word, tensor = WORDS[conflict.letter[0]], flow.sources[culprit].tensor
    is_load = flow.sources[culprit].site.operation == "load"
    verb = "read" if is_load else "written"
    if here == there:
        return f"{tensor} is {verb} in no block of rows and columns, and a dot sums it with {names}"
    does = "outside its elements" if here < 0 else f"at {word} {here}"
    return f"{tensor} is {verb} {does} where it meets {word} {there} of {names}"


def blamed(site: Site, right: Iterable[Site]) -> tuple[Line, ...]:
    """The lines of a site without the innermost ones that are right where something else calls them."""
    same = [one for one in right if (one.operation, one.instruction) == (site.operation, site.instruction)]
    elsewhere = {other.lines[-depth:] for other in same for depth in range(1, len(other.lines) + 1)}
    lines = site.lines
    for depth in range(1, len(lines)):
        if lines[-depth:] not in elsewhere:
            return lines[: len(lines) - depth + 1]
    return lines[:1]


# --- values


def _is_known(node: Node) -> bool:
    return node.role is not None and node.role.is_known


def _values(run: Followed, wrong: Sequence[str]) -> Iterator[Suspect]:
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
    right, fine, earlier = _right(run.flow), _fine(run.flow.nodes), set[str]()
    for site in sorted(found, key=lambda site: found[site][0].number):
        node, used_by = found[site]
        if site in explained:
            earlier.add(site.kernel)
            continue
        if site.operation == "fmul" and {"do", "o"} <= {one.role.name for one in node.operands if one.role}:
            continue  # what is summed for delta, which no form is compared with
        name = _expected(node, run.flow.nodes)
        if node is not used_by and _is_known(node) and used_by.site.operation == "load":
            yield _partly(node, extents[site])
            continue
        reason = _of_summed(node, used_by) if _is_known(node) else _of_value(node, name)
        lines = blamed(site, right - {site})
        beside = tuple(dict.fromkeys(_entering(run.flow, node)))
        is_sure = site not in fine and not (earlier - {site.kernel} and _has_unseen_load(node))
        earlier |= {site.kernel} if is_sure else set()
        yield Suspect("value", name, site, lines, reason, extents[site], is_sure, beside)


def _right(flow: Flow) -> set[Site]:
    """The operations that came to something right at least once."""
    return {node.site for node in flow.nodes if _is_known(node)}


def _by_factors(
    run: Followed, found: Mapping[Site, tuple[Node, Node]], extents: Mapping[Site, str]
) -> Iterator[tuple[Site, Suspect]]:
    """What gave an operand of a wrong value an odd factor, by the site of that value."""
    factors, told = Factors(run), dict[Site, Suspect]()
    for site, (node, _) in found.items():
        culprit = None if _is_known(node) else factors.culprit(node)
        if culprit is not None:
            reason = f"it is {culprit.words}, and line {places(site.lines)[-1].line} takes it for {culprit.wanted}"
            odd = culprit.node.site
            lines = blamed(odd, _right(run.flow) - {odd})
            told.setdefault(odd, Suspect("value", culprit.name, odd, lines, reason, extents[site]))
            yield site, told[odd]
    for site, (node, _) in found.items():
        yield from ((site, told[entry]) for entry in factors.entries(node) if entry in told)


def _by_masks(
    flow: Flow, found: Mapping[Site, tuple[Node, Node]], extents: Mapping[Site, str]
) -> Iterator[tuple[Site, Suspect]]:
    """The loads whose masks leave out what a wrong value is made of, by the site of that value."""
    wrong = [site for site, (node, _) in found.items() if not _is_known(node)]
    masked = {site: flow.gaps.get(site, frozenset()) - flow.unknown for site in wrong}
    gaps = frozenset[int]().union(*masked.values())
    whole = [one.site for number, one in enumerate(flow.sources) if number not in gaps]
    for site, numbers in masked.items():
        for number in sorted(numbers):
            source = flow.sources[number]
            reason = f"its mask leaves out rows or keys that line {places(site.lines)[-1].line} works on"
            lines = blamed(source.site, whole)
            yield site, Suspect("masked", source.tensor, source.site, lines, reason, extents[site])


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
    yield from (operand.site.lines for operand in node.operands if operand.role is None)
    unscaled = [one.site.lines for one in node.operands if one.role is not None and one.role.name == "Q K^T"]
    # Scores that LSE is taken from are to be scaled where they are made.
    yield from unscaled if any(one.role is not None and one.role.name == "LSE" for one in node.operands) else ()


def _first_wrong(run: Followed, wrong: Sequence[str]) -> Iterator[tuple[Node, Node]]:
    """Every wrong node that is made of right ones, with the node that it was reached from."""
    seen: set[int] = set()
    pending = [(stored.node, stored.node) for stored in _wrong_stores(run, wrong)]
    while pending:
        node, used_by = pending.pop()
        if node.number in seen or _is_known(node):
            continue
        seen.add(node.number)
        unmasked = [operand for operand in node.operands if _is_not_to_be_summed(node, operand)]
        unknown = [operand for operand in node.operands if not _is_known(operand) and _is_wrong(operand)]
        if unknown:
            pending += [(operand, node) for operand in unknown]
        elif unmasked:
            yield from ((operand, node) for operand in unmasked)
        elif node.role is not None and node.site.operation == "load" and _are_partial(run, node.operands):
            yield from ((operand, node) for operand in node.operands)
        elif node.role is not None:
            yield node, used_by


def _are_partial(run: Followed, nodes: Sequence[Node]) -> bool:
    """Whether what these were stored into does not hold all pairs: right as far as it was summed."""
    homes = {stored.home for stored in run.flow.stores if stored.node in nodes}
    visits = _visits(run)
    return any(bool((run.roles.valid & (visits[home] == 0)).any()) for home in homes if home in visits)


def _visits(run: Followed) -> Mapping[int, Array]:
    """How often pairs were visited; of a run that could not be followed throughout nothing, since some may lack."""
    return {} if run.flow.failures else run.flow.visits


# What a dot over rows or keys sums an input's rows with.
_SUMMED = {"q": ("dS",), "k": ("dS",), "do": ("P", "P after dropout", "relu(P + tau / (i + 1))")}


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


def _is_wrong(node: Node) -> bool:
    """Whether its value, or one that it was made of since anything known, was compared and is nothing that is known."""
    pending, seen = [node], set[int]()
    while pending:
        one = pending.pop()
        if one.number in seen:
            continue
        seen.add(one.number)
        if one.role is None or one.role.is_by_row:
            pending += one.operands
        elif not one.role.is_known:
            return True
    return False


def _wrong_stores(run: Followed, wrong: Sequence[str]) -> list[Stored]:
    """The stores of what is wrong. Where host code made a result of what kernels stored, all that has no name."""
    storages = run.outcome.storages
    names = {storages.get(one.home, "") for one in run.flow.stores}
    is_hidden = not names >= set(wrong)
    wanted = {*wrong, *([""] if is_hidden else [])}
    return [one for one in run.flow.stores if storages.get(one.home, "") in wanted]


def _of_value(node: Node, name: str) -> str:
    known = [operand.role for operand in node.operands if operand.role is not None and operand.role.name]
    if name and name in [role.name for role in known]:
        return f"{name} is right before it and wrong after it"
    right = " and ".join(dict.fromkeys(role.words for role in known))
    is_wrong = f"is not {name}" if name else "is no intermediate, nor a step to one"
    if not right:
        return f"what is made here {is_wrong}"
    are, them = ("are", "them") if " and " in right else ("is", "it")
    return f"{right} {are} right, and what is made of {them} {is_wrong}"


def _of_summed(node: Node, used_by: Node) -> str:
    assert node.role is not None
    sums = f"line {places(used_by.site.lines)[-1].line} sums over it"
    if node.role.is_open:
        return f"{node.role.words} is right where rows see keys and not masked where they do not, and {sums}"
    return f"it is {node.role.words}, and {sums} as if it were more"


def _partly(node: Node, extent: str) -> Suspect:
    """What is stored is right as far as it was summed, and does not hold all that it should."""
    assert node.role is not None
    site, *_ = _summing(node)
    reason = f"{node.role.words} is stored before all keys are in it"
    return Suspect("pairs", node.role.name, site, site.lines, reason, extent)


# What an operation makes of right values.
_MADE = {
    ("P", "dP - delta"): "dS",
    ("dP", "delta"): "dP - delta",
    ("S", "LSE"): "S - LSE",
    ("Q K^T", "LSE"): "S - LSE",
    ("S - LSE",): "P",
    ("q", "k"): "Q K^T",
    ("do", "v"): "dP",
    ("Q K^T",): "S",
    ("dS", "k"): "dQ",
    ("dS", "q"): "dK",
    ("P", "do"): "dV",
    ("P", "v"): "O",
    ("do", "o"): "delta",
    ("P", "dP"): "P * dP",
    ("P",): "P",
    ("dS",): "dS",
    ("dP",): "dP",
}
_EXPECTED = {frozenset(made_of): name for made_of, name in _MADE.items()}


def _expected(node: Node, nodes: Sequence[Node]) -> str:
    """What a value should be: what it is where it is right, else what is made of such operands; "" if unknown."""
    elsewhere = Counter(one.role.name for one in nodes if one.site == node.site and one.role and one.role.is_known)
    if elsewhere:
        return elsewhere.most_common(1)[0][0]
    made = frozenset(operand.role.name for operand in node.operands if operand.role is not None)
    return _EXPECTED.get(made, "")


def _not_numbers(run: Followed, wrong: Sequence[str]) -> Iterator[Suspect]:
    """The operations that make NaN of numbers, on the way to a result that holds NaN."""
    pending, seen = [one.node for one in _wrong_stores(run, wrong) if one.has_nan], set[int]()
    found, tiles = Counter[Site](), Counter(node.site for node in run.flow.nodes)
    while pending:
        node = pending.pop()
        if node.number in seen:
            continue
        seen.add(node.number)
        behind = [operand for operand in node.operands if operand.has_nan]
        pending += behind
        found[node.site] += not behind and node.site.operation != "load"
    for site, count in found.items():
        if count:
            extent = share(count, tiles[site], "tile")
            yield Suspect("value", "NaN", site, site.lines, "it makes NaN of numbers", extent)


# --- factors and pairs


def _factors(run: Followed, wrong: Sequence[str], *, of_host: bool = False) -> Iterator[Suspect]:
    """Results that are stored as what they are, times another constant.

    Args:
        of_host: whether to look at what host code makes a result of too. It may multiply that yet, so none is sure.
    """
    found: dict[Site, list[tuple[str, str]]] = {}
    for stored in run.flow.stores:
        role = stored.node.role
        name = _result_of(run, stored) if of_host else run.outcome.storages.get(stored.home, "")
        if name not in wrong or name not in STORED or role is None or not role.is_known or role.words == STORED[name]:
            continue
        found.setdefault(stored.site, []).append((name, role.words))
    tiles = Counter(stored.site for stored in run.flow.stores)
    for site, ((name, words), *others) in found.items():
        reason, extent = (
            f"{name} is stored as {words}, and is {STORED[name]}",
            share(1 + len(others), tiles[site], "tile"),
        )
        yield Suspect("stored", name, site, site.lines[:1], reason, extent, is_sure=not of_host)


# What a store of it is the result of.
_RESULTS = {"dS K": "dQ", "dS^T Q": "dK", "dV": "dV", "O": "O"}


def _result_of(run: Followed, stored: Stored) -> str:
    """The result that a store is of: of scratch that host code makes one of, by what is stored; "" if unknown."""
    role = stored.node.role
    return run.outcome.storages.get(stored.home, "") or _RESULTS.get(role.name if role is not None else "", "")


def _pairs(run: Followed, wrong: Sequence[str]) -> Iterator[Suspect]:
    """Results that some pairs of a row and a key are left out of, or counted twice in."""
    of_wrong = {one.home for one in _wrong_stores(run, wrong)}
    for home, visits in _visits(run).items():
        if home not in of_wrong:
            continue
        stored = next(one for one in run.flow.stores if one.home == home)
        name = _result_of(run, stored)
        missing, twice = run.roles.valid & (visits == 0), run.roles.valid & (visits > 1)
        # Scratch that host code makes a result of may well hold what is stored twice.
        pairs, what = (
            (missing, "left out")
            if missing.any() or home not in run.outcome.storages
            else (twice, "counted more than once")
        )
        if not pairs.any() or name not in wrong:
            continue
        b, h, m, n = (int(at) for at in np.argwhere(pairs)[0])
        first = f"the first of row {m} and key {n} (batch {b}, head {h})"
        reason = f"{int(pairs.sum()):,} pairs of a row and a key are {what}, {first}"
        site, *others = _summing(stored.node)
        extent = share(int(pairs.sum()), int(run.roles.valid.sum()), "pair")
        yield Suspect("pairs", name, site, site.lines, reason, extent, beside=tuple(one.lines for one in others))


def _nothing_summed(run: Followed, wrong: Sequence[str]) -> Iterator[Suspect]:
    """Results into which nothing was summed: the loop that makes them never runs."""
    if run.flow.failures:  # what could not be followed may have been loaded
        return
    filled, total = {one.home for one in run.flow.stores}, int(run.roles.valid.sum())
    for home, site in run.flow.empty.items():
        name = run.outcome.storages.get(home, "")
        if name in wrong and home not in filled:
            reason = "what is stored is made of nothing that was loaded"
            yield Suspect("pairs", name, site, site.lines, reason, share(total, total, "pair"))


def _summing(node: Node) -> tuple[Site, ...]:
    """The dots that a result was summed by, the last first; one that sums nothing itself stands for them."""
    pending, seen, found = [node], set[int](), dict[Site, None]()
    while pending:
        one = pending.pop(0)
        if one.number in seen:
            continue
        seen.add(one.number)
        if one.site.operation in ("dot", "reduce"):
            found[one.site] = None
            # What it is added to, where that is an operand of its own, was summed by others.
            pending += [operand for operand in one.operands[2:] if one.site.operation == "dot"]
        else:
            pending += one.operands
    dots = tuple(site for site in found if site.operation == "dot")
    return dots or tuple(found) or (node.site,)
