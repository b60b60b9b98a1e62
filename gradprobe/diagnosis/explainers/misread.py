"""Loads and stores of other elements than those that a kernel works on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from ...frontends.triton.interpreter.dataflow import Conflict, Flow, Node, Site, behind, places
from ...inputs.memory import Array
from ...model.intermediates import AXIS_WORDS
from ...model.number import plural
from ..follow import FollowedRun
from ..roles import VANISHING
from .suspect import Chain, Suspect, blamed, share


def misread(run: FollowedRun) -> Iterator[Suspect]:
    """The loads and stores whose indices disagree with those of most others that they meet."""
    return misread_in(run.flow)


def misread_in(flow: Flow) -> Iterator[Suspect]:
    """The same, of what the kernels of any language loaded and stored."""
    culprits = culprits_of(flow)
    right = [source.site for number, source in enumerate(flow.sources) if number not in culprits]
    for number, conflicts in culprits.items():
        if earlier := [*_confined_before(flow, number, conflicts)]:
            yield from earlier
            continue
        source, conflict = flow.sources[number], min(conflicts, key=lambda one: "bhmndegw".find(one.letter[0]))
        alike = [one for one in conflicts if one.letter == conflict.letter]
        extent = share(len(alike), len(alike) + flow.agreed[number, conflict.letter], "time")
        sides = sorted({_sides(number, one) for one in alike})
        yield Suspect(
            "load" if source.site.operation == "load" else "store", source.tensor, source.site,
            blamed(source.site, right), _of_conflict(flow, number, conflict), extent,
            beside=tuple(addressing(flow, number, culprits)), letter=conflict.letter,
            reached=tuple((there, here) for there, here in sides if there != here),
        )  # fmt: skip


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset[int]().union(*sets)


def _behind(flow: Flow, numbers: Iterable[int]) -> frozenset[int]:
    """The lines that made the addresses of some accesses."""
    return _union(flow.slices.get(number, frozenset()) for number in numbers)


def addressing(flow: Flow, culprit: int, culprits: Collection[int]) -> Iterator[Chain]:
    """The lines that made the address of a misread access and that of no right one, the last first.

    Where others of its kernel are misread and share such lines, these first.
    """
    short = [x for x in "bhg" if (culprit, x) in flow.reached and not _is_all(flow, culprit, x)]
    # What never reaches the same heads or batches, and met nothing that does, may well be wrong too.
    right = [x for x in flow.slices if x not in culprits and all(_is_all(flow, x, letter) for letter in short)]
    own, kernel = _behind(flow, [culprit]) - _behind(flow, right), flow.sources[culprit].site.kernel
    beside = [x for x in culprits if x != culprit and flow.sources[x].site.kernel == kernel]
    shared = own.intersection(*(_behind(flow, [number]) for number in beside))
    ordered = [*sorted(shared, reverse=True), *sorted(own - shared, reverse=True)]
    yield from (flow.lines[number] for number in ordered)


def culprits_of(flow: Flow) -> dict[int, list[Conflict]]:
    """The loads and stores that disagree with most others, by number, with what they disagree in."""
    left = _of_the_first_kernel(flow)
    culprits = _confined(flow, left)
    left = [one for one in left if not culprits.keys() & (one.left | one.right)]
    while left:
        culprit = _culprit(flow, left)
        culprits[culprit] = [one for one in left if culprit in one.left | one.right]
        left = [one for one in left if culprit not in one.left | one.right]
    return culprits


def _of_the_first_kernel(flow: Flow) -> list[Conflict]:
    """The conflicts, without those of later kernels about what an earlier one stored that has conflicts itself."""
    first = flow.conflicts[0].site.kernel if flow.conflicts else ""
    return [
        one
        for one in flow.conflicts
        if one.site.kernel == first or not (one.left <= flow.derived or one.right <= flow.derived)
    ]


def _confined(flow: Flow, conflicts: Sequence[Conflict]) -> dict[int, list[Conflict]]:
    """Those that never reach some head, batch, row or key, where all that they disagree with reach every one.

    So do most accesses of a kernel that takes too little of its program's number: what stands alone is right then.
    """
    found: dict[int, list[Conflict]] = {}
    for conflict in (one for one in conflicts if one.letter in "bhgmn"):
        for few, many in ((conflict.left, conflict.right), (conflict.right, conflict.left)):
            is_few = not any(_is_all(flow, x, conflict.letter) for x in few)
            if is_few and all(_is_all(flow, x, conflict.letter) for x in many):
                for number in few:
                    found.setdefault(number, []).append(conflict)
    return found


def _confined_before(flow: Flow, culprit: int, conflicts: Sequence[Conflict]) -> Iterator[Suspect]:
    """What an earlier kernel made a buffer of that seems misread, where that kernel never reached what it misses."""
    made_of = [one for node in flow.nodes if node.site == flow.sources[culprit].site for one in node.operands]
    of_lanes = [one.lanes.origins for one in made_of if one.lanes is not None and culprit in flow.derived]
    for letter in sorted({one.letter for one in conflicts}, key="bhgmn".find):
        loads = _union(origins.get(letter, frozenset()) for origins in of_lanes)
        short = sorted(each for each in loads if (each, letter) in flow.reached and not _is_all(flow, each, letter))
        for number in short:
            source, missed = flow.sources[number], ~flow.reached[number, letter]
            reason = f"{source.tensor} is never read at {AXIS_WORDS[letter]} {int(np.flatnonzero(missed)[0])}"
            reason += f", and {flow.sources[culprit].tensor}, which is made of it, is used there"
            extent = share(int(missed.sum()), missed.size, AXIS_WORDS[letter])
            beside = tuple(addressing(flow, number, short))
            yield Suspect("load", source.tensor, source.site, source.site.lines, reason, extent, beside=beside)
        if short:
            return


def _is_all(flow: Flow, number: int, letter: str) -> bool:
    reached = flow.reached.get((number, letter))
    return reached is not None and bool(reached.all())


def _culprit(flow: Flow, conflicts: Sequence[Conflict]) -> int:
    """Of two that disagree the one that stands alone; among equals one that reads no block, or that agrees least.

    Of a load and a store alone the load is right where something known is made of it, and wrong where nothing is.
    """
    votes, letters = defaultdict[int, float](float), set[tuple[int, str]]()
    for conflict in conflicts:
        for side in (conflict.left, conflict.right):
            for number in side:
                votes[number] += 1 / len(side)
                letters.add((number, conflict.letter))
    agreed = Counter[int]()
    for number, letter in letters:
        agreed[number] += flow.agreed[number, letter]
    doubts = _doubts(flow)
    return max(votes, key=lambda each: (votes[each], each in flow.irregular, doubts[each], -agreed[each], each))


def _doubts(flow: Flow) -> list[int]:
    """Of each source: 0 of a load of which something known is made, mostly, 1 of a store, 2 of another load."""
    loads = [node for node in flow.nodes if node.site.operation == "load"]
    times, used = Counter(node.site for node in loads), Counter(node.site for node in loads if node.used)
    sites = [source.site for source in flow.sources]
    return [1 if one.operation != "load" else 0 if 2 * used[one] > times[one] else 2 for one in sites]


def transposed(run: FollowedRun) -> Iterator[Suspect]:
    """The dots that sum over one axis on their left and over another on their right; or the loads that lie across."""
    flow, found = run.flow, defaultdict[Site, list[Conflict]](list)
    for one in flow.conflicts:
        if "/" in one.letter and not (one.left | one.right) & flow.irregular:
            found[one.site].append(one)
    dots = {node.site: node for node in reversed(flow.nodes) if node.site in found and node.site.operation == "dot"}
    across = (_across(one, dots.get(site)) for site, of_site in found.items() for one in of_site)
    if loads := dict.fromkeys(number for numbers in across for number in numbers):
        yield from (_read_across(flow, number, loads) for number in loads)
        return
    for site, (first, *others) in found.items():
        left, right = (AXIS_WORDS[letter] for letter in first.letter.split("/"))
        reason = f"the dot sums over {left}s on its left and over {right}s on its right"
        yield Suspect("value", "", site, site.lines, reason, share(1 + len(others), run.tiles[site], "tile"))


def _across(conflict: Conflict, dot: Node | None) -> frozenset[int]:
    """The loads whose tiles lie across in a dot: inputs have dims in common, and scores rows and keys with inputs."""
    if dot is None or len(dot.operands) < 2:
        return frozenset()
    are_loaded = [is_loaded(operand) for operand in dot.operands[:2]]
    wrong = "mn" if all(are_loaded) else "de"
    sides = zip((conflict.left, conflict.right), conflict.letter.split("/"), are_loaded, strict=True)
    return _union(numbers for numbers, letter, loaded in sides if loaded and letter in wrong)


def is_loaded(node: Node) -> bool:
    """Whether a tile is what was loaded, but for a cast or a constant, and no sum of others."""
    while node.site.operation not in ("load", "reduce") and len(node.operands) == 1:
        node = node.operands[0]
    return node.site.operation == "load"


def _read_across(flow: Flow, number: int, loads: Collection[int]) -> Suspect:
    source = flow.sources[number]
    right = [each.site for other, each in enumerate(flow.sources) if other not in loads]
    reason = f"the rows of {source.tensor} lie where a dot sums over its dims, or its dims where it sums over rows"
    met = [one.site.lines for one in flow.conflicts if "/" in one.letter and number in one.left | one.right]
    lines, beside = blamed(source.site, right), tuple(addressing(flow, number, loads))
    used, extent = tuple(dict.fromkeys(met)), plural(len(met), "time")
    return Suspect("load", source.tensor, source.site, lines, reason, extent, beside=beside, used=used)


def _sides(culprit: int, conflict: Conflict) -> tuple[int, int]:
    """The index that an access meets, and its own."""
    here, there = conflict.example if culprit in conflict.left else conflict.example[::-1]
    return there, here


def _of_conflict(flow: Flow, culprit: int, conflict: Conflict) -> str:
    there, here = _sides(culprit, conflict)
    others = conflict.right if culprit in conflict.left else conflict.left
    names = " and ".join(sorted({flow.sources[number].tensor for number in others}))
    word, tensor = AXIS_WORDS[conflict.letter[0]], flow.sources[culprit].tensor
    verb = "read" if flow.sources[culprit].site.operation == "load" else "written"
    if here == there:
        return f"{tensor} is {verb} in no block of rows and columns, and a dot sums it with {names}"
    does = "outside its elements" if here < 0 else f"at {word} {here}"
    return f"{tensor} is {verb} {does} where it meets {word} {there} of {names}"


# --- masks that are right for other elements


def masked_elsewhere(run: FollowedRun) -> Iterator[Suspect]:
    """The loads of what a mask covers as if it lay elsewhere, where the mask is right for what lies there."""
    by_site = defaultdict[Site, list[Node]](list)
    for node in run.flow.nodes:
        if _unmasked(node) is not None:
            by_site[node.site].append(node)
    for nodes in by_site.values():
        if by := _shift(run.roles.valid, nodes):
            yield from _mask_elsewhere(run.flow, nodes, by)


def _unmasked(node: Node) -> Node | None:
    """The scores that a mask was put on, by selects or by adding it; None of any other operation."""
    first = node
    while first.site.operation == "select" or _adds_a_mask(first):
        made = [one for one in first.operands if one.lanes is not None]
        if not made or first.lanes is None or not {*"bhmn"} <= first.lanes.at.keys():
            return None
        first = made[0]
    return None if first is node or node.value is None else first


def _adds_a_mask(node: Node) -> bool:
    """Whether it adds 0 to some scores, and to all others so little that their exponential vanishes."""
    before = node.operands[0].value if len(node.operands) == 1 else None
    if node.site.operation != "fadd" or before is None or node.value is None or node.value.shape != before.shape:
        return False
    return bool(((node.value == before) | (node.value < before - VANISHING)).all())


def _shift(valid: Array, nodes: Sequence[Node]) -> int:
    """By how many keys further all tiles are masked: whole tiles of keys, or rows, to either side.

    0 where that explains not all, or no mask's edge shows it: a mask of which one end alone is elsewhere is wrong.
    """
    masks = [_kept(node) for node in nodes]
    sizes = {len(np.unique(each)) for each in masks[0][0][2:]} - {0}
    further = {by for size in sizes for by in range(size, valid.shape[3], size)}
    for by in (0, *sorted((*further, *(-by for by in further)), key=abs)):
        has_edge, fits = False, True
        for (b, h, m, n), kept in masks:
            there = (n + by >= 0) & (n + by < valid.shape[3])
            due = valid[b[there], h[there], m[there], n[there] + by]
            fits &= np.array_equal(due, kept[there])
            has_edge |= len(np.unique(due)) > 1
        if fits:
            return by * has_edge
    return 0


def _kept(node: Node) -> tuple[Array, Array]:
    """[4, entries] batch, head, row and key of what was masked, and [entries] whether it was left as it is."""
    first = _unmasked(node)
    assert first is not None
    assert node.lanes is not None
    at = np.stack([node.lanes.at[x] for x in "bhmn"])
    known = (at >= 0).all(0)
    return at[:, known], np.asarray(node.value == first.value)[known]


def _mask_elsewhere(flow: Flow, nodes: Sequence[Node], by: int) -> Iterator[Suspect]:
    site, tiles = nodes[0].site, [_kept(node)[0].min(1) for node in nodes[:2]]
    # Where a program's loop goes over rows, the rows of the next tile are others, and the keys are not.
    letter = "m" if tiles[0][2] != tiles[-1][2] and tiles[0][3] == tiles[-1][3] else "n"
    # Nothing behind a load, which other kernels made.
    made = behind(nodes[:1], lambda one: one.operands if one.site.operation != "load" else ())
    loads = {one.site for one in made if one.lanes is not None and letter in one.lanes.at}
    number = next((number for number, one in enumerate(flow.sources) if one.site in loads), None)
    if number is None:
        return
    source, here, line = flow.sources[number], int(tiles[0]["bhmn".index(letter)]), places(site.lines)[-1].line
    there = here + by if letter == "n" else here - by
    reason = f"{source.tensor} is read at {AXIS_WORDS[letter]} {here}, and line {line} masks it as if it were "
    reason += f"{AXIS_WORDS[letter]} {there}: the mask is right for that"
    moved = [each for each, x in flow.reached if x == letter and flow.sources[each].site.kernel == site.kernel]
    beside, extent = tuple(addressing(flow, number, moved)), share(len(nodes), len(nodes), "tile")
    yield Suspect(
        "load", source.tensor, source.site, source.site.lines, reason, extent,
        beside=beside, used=(site.lines,), letter=letter, reached=((there, here),),
    )  # fmt: skip
