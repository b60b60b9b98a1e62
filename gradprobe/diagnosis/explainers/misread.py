"""Loads and stores of other elements than those that a kernel works on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...frontends.triton.interpreter.dataflow import Conflict, Flow, Node, Site, behind, places
from ...inputs.memory import Array
from ...model.intermediates import AXIS_WORDS
from ..follow import FollowedRun
from ..roles import VANISHING
from .suspect import Chain, Suspect, blamed, share

_Conflicts = Mapping[int, list[Conflict]]
"""By the number of an access."""


def misread(run: FollowedRun) -> Iterator[Suspect]:
    """The loads and stores whose indices disagree with those of most others that they meet."""
    return misread_in(run.flow)


def misread_in(flow: Flow) -> Iterator[Suspect]:
    """The same, of what the kernels of any language loaded and stored."""
    culprits = culprits_of(flow)
    right = [source.site for number, source in enumerate(flow.sources) if number not in culprits]
    for number, conflicts in culprits.items():
        earlier = _confined_before(flow, number, conflicts)
        if earlier:
            yield from earlier
            continue
        source, conflict = flow.sources[number], min(conflicts, key=lambda one: "bhmndegw".find(one.letter[0]))
        alike = [one for one in conflicts if one.letter == conflict.letter]
        reached = sorted({_sides(number, one) for one in alike})
        yield Suspect(
            "load" if source.site.operation == "load" else "store", source.tensor, source.site,
            blamed(source.site, right), _of_conflict(flow, number, conflict),
            share(len(alike), len(alike) + flow.agreed[number, conflict.letter], "time"),
            beside=tuple(addressing(flow, number, culprits)), letter=conflict.letter,
            reached=tuple((there, here) for there, here in reached if there != here),
        )  # fmt: skip


def _sides(culprit: int, conflict: Conflict) -> tuple[int, int]:
    """The index that an access meets, and its own."""
    here, there = conflict.example if culprit in conflict.left else conflict.example[::-1]
    return there, here


def _of_conflict(flow: Flow, culprit: int, conflict: Conflict) -> str:
    there, here = _sides(culprit, conflict)
    others = conflict.right if culprit in conflict.left else conflict.left
    names = " and ".join(sorted({flow.sources[number].tensor for number in others}))
    word, source = AXIS_WORDS[conflict.letter[0]], flow.sources[culprit]
    does = f"{source.tensor} is {'read' if source.site.operation == 'load' else 'written'}"
    if here == there:
        return f"{does} in no block of rows and columns, and a dot sums it with {names}"
    where = "outside its elements" if here < 0 else f"at {word} {here}"
    return f"{does} {where} where it meets {word} {there} of {names}"


# --- the lines of an address


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset[int]().union(*sets)


def addressing(flow: Flow, culprit: int, culprits: Collection[int]) -> Iterator[Chain]:
    """The lines that made the address of a misread access and that of no right one, the last first.

    Where others of its kernel are misread and share such lines, these first.
    """
    own = shared = flow.slices.get(culprit, frozenset[int]())
    kernel = flow.sources[culprit].site.kernel
    for number, behind_it in flow.slices.items():
        # What never reaches the same heads or batches, and met nothing that does, may well be wrong too.
        may_be_wrong = any(_is_short(flow, culprit, x) and not _is_all(flow, number, x) for x in "bhg")
        if number not in culprits and not may_be_wrong:
            own -= behind_it
        elif number in culprits and flow.sources[number].site.kernel == kernel:
            shared &= behind_it
    for number in (*sorted(own & shared, reverse=True), *sorted(own - shared, reverse=True)):
        yield flow.lines[number]


def _is_all(flow: Flow, number: int, letter: str) -> bool:
    reached = flow.reached.get((number, letter))
    return reached is not None and bool(reached.all())


def _is_short(flow: Flow, number: int, letter: str) -> bool:
    return (number, letter) in flow.reached and not _is_all(flow, number, letter)


# --- the vote


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
    found = []
    for one in flow.conflicts:
        is_of_earlier = one.left <= flow.derived or one.right <= flow.derived
        if one.site.kernel == flow.conflicts[0].site.kernel or not is_of_earlier:
            found.append(one)
    return found


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


def _confined_before(flow: Flow, culprit: int, conflicts: Sequence[Conflict]) -> list[Suspect]:
    """What an earlier kernel made a buffer of that seems misread, where that kernel never reached what it misses."""
    found, loads = list[Suspect](), set[tuple[int, str]]()
    for node in flow.nodes if culprit in flow.derived else ():
        for made in node.operands if node.site == flow.sources[culprit].site else ():
            origins = made.lanes.origins if made.lanes is not None else {}
            loads |= {
                (number, conflict.letter) for conflict in conflicts for number in origins.get(conflict.letter, ())
            }
    short = {number: letter for number, letter in sorted(loads) if _is_short(flow, number, letter)}
    for number, letter in short.items():
        source, missed, word = flow.sources[number], ~flow.reached[number, letter], AXIS_WORDS[letter]
        reason = f"{source.tensor} is never read at {word} {int(np.flatnonzero(missed)[0])}"
        reason += f", and {flow.sources[culprit].tensor}, which is made of it, is used there"
        extent, beside = share(int(missed.sum()), missed.size, word), tuple(addressing(flow, number, short))
        found.append(Suspect("load", source.tensor, source.site, source.site.lines, reason, extent, beside=beside))
    return found


def _culprit(flow: Flow, conflicts: Sequence[Conflict]) -> int:
    """Of two that disagree the one that stands alone; among equals one that reads no block, or that agrees least.

    Of a load and a store alone the load is right where something known is made of it, and wrong where nothing is.
    """
    votes, agreed, used = defaultdict[int, float](float), Counter[int](), Counter[Site]()
    letters = {(number, one.letter) for one in conflicts for number in one.left | one.right}
    for number, letter in letters:
        agreed[number] += flow.agreed[number, letter]
    for conflict in conflicts:
        for side in (conflict.left, conflict.right):
            for number in side:
                votes[number] += 1 / len(side)
    for node in flow.nodes:
        used[node.site] += 1 if node.used else -1

    def doubt(number: int) -> int:
        site = flow.sources[number].site
        return 1 if site.operation != "load" else 0 if used[site] > 0 else 2

    return max(votes, key=lambda each: (votes[each], each in flow.irregular, doubt(each), -agreed[each], each))


# --- dots over different axes


def transposed(run: FollowedRun) -> Iterator[Suspect]:
    """The dots that sum over one axis on their left and over another on their right."""
    flow, found = run.flow, defaultdict[Site, list[Conflict]](list)
    for one in flow.conflicts:
        if "/" in one.letter and not (one.left | one.right) & flow.irregular:
            found[one.site].append(one)
    for site, conflicts in found.items():
        left, right = (AXIS_WORDS[letter] for letter in conflicts[0].letter.split("/"))
        reason = f"the dot sums over {left}s on its left and over {right}s on its right"
        # It may be the address by which one of them is loaded across.
        beside = tuple(flow.sources[number].site.lines for number in sorted(conflicts[0].left | conflicts[0].right))
        extent = share(len(conflicts), run.tiles[site], "tile")
        yield Suspect("value", "", site, site.lines, reason, extent, beside=beside)


def is_loaded(node: Node) -> bool:
    """Whether a tile is what was loaded, but for a cast or a constant, and no sum of others."""
    while node.site.operation not in ("load", "reduce") and len(node.operands) == 1:
        node = node.operands[0]
    return node.site.operation == "load"


# --- masks that are right for other elements


def masked_elsewhere(run: FollowedRun) -> Iterator[Suspect]:
    """The loads of what a mask covers as if it lay elsewhere, where the mask is right for what lies there."""
    by_site = defaultdict[Site, list[tuple[Array, Array]]](list)
    made = dict[Site, Node]()
    for node in run.flow.nodes:
        kept = _kept(node)
        if kept is not None:
            by_site[node.site].append(kept)
            made.setdefault(node.site, node)
    for site, masks in by_site.items():
        by = _shift(run.roles.valid, masks)
        if by:
            yield from _mask_elsewhere(run.flow, made[site], masks, by)


def _kept(node: Node) -> tuple[Array, Array] | None:
    """Of scores that a mask was put on, by selects or by adding it; None of any other operation.

    Returns:
        [4, entries] batch, head, row and key of what was masked, and [entries] whether it was left as it is.
    """
    first = node
    while first.site.operation == "select" or _adds_a_mask(first):
        before = [one for one in first.operands if one.lanes is not None]
        if not before or first.lanes is None or not {*"bhmn"} <= first.lanes.at.keys():
            return None
        first = before[0]
    if first is node or node.value is None or node.lanes is None:
        return None
    at = np.stack([node.lanes.at[x] for x in "bhmn"])
    known = (at >= 0).all(0)
    return at[:, known], np.asarray(node.value == first.value)[known]


def _adds_a_mask(node: Node) -> bool:
    """Whether it adds 0 to some scores, and to all others so little that their exponential vanishes."""
    before = node.operands[0].value if len(node.operands) == 1 else None
    if node.site.operation != "fadd" or before is None or node.value is None or node.value.shape != before.shape:
        return False
    return bool(((node.value == before) | (node.value < before - VANISHING)).all())


def _shift(valid: Array, masks: Sequence[tuple[Array, Array]]) -> int:
    """By how many keys further all tiles are masked: whole tiles of keys, or rows, to either side.

    0 where that explains not all, or no mask's edge shows it: a mask of which one end alone is elsewhere is wrong.
    """
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


def _mask_elsewhere(flow: Flow, node: Node, masks: Sequence[tuple[Array, Array]], by: int) -> Iterator[Suspect]:
    site, first, second = node.site, masks[0][0].min(1), masks[min(1, len(masks) - 1)][0].min(1)
    # Where a program's loop goes over rows, the rows of the next tile are others, and the keys are not.
    letter = "m" if first[2] != second[2] and first[3] == second[3] else "n"
    # Nothing behind a load, which other kernels made.
    made = behind([node], lambda one: one.operands if one.site.operation != "load" else ())
    loads = {one.site for one in made if one.lanes is not None and letter in one.lanes.at}
    here = int(first["bhmn".index(letter)])
    there = here + by if letter == "n" else here - by
    for number, source in enumerate(flow.sources):
        if source.site in loads:
            word = AXIS_WORDS[letter]
            reason = f"{source.tensor} is read at {word} {here}, and line {places(site.lines)[-1].line} masks it as if "
            reason += f"it were {word} {there}: the mask is right for that"
            moved = [each for each, x in flow.reached if x == letter and flow.sources[each].site.kernel == site.kernel]
            yield Suspect(
                "load", source.tensor, source.site, source.site.lines, reason, share(len(masks), len(masks), "tile"),
                beside=tuple(addressing(flow, number, moved)), used=(site.lines,), letter=letter,
                reached=((there, here),),
            )  # fmt: skip
            return
