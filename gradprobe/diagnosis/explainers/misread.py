"""Loads and stores of other elements than those that a kernel works on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ...frontends.triton.interpreter.dataflow import Conflict, Flow, Node, Site
from ...model.intermediates import AXIS_WORDS
from ..follow import FollowedRun
from .diagnoses import Chain, Suspect, blamed


def misread(run: FollowedRun) -> Iterator[Suspect]:
    """The loads and stores whose indices disagree with those of most others that they meet."""
    return misread_in(run.flow)


def misread_in(flow: Flow) -> Iterator[Suspect]:
    """The same, of what the kernels of any language loaded and stored."""
    culprits = culprits_of(flow)
    right = [source.site for number, source in enumerate(flow.sources) if number not in culprits]
    for number, conflicts in culprits.items():
        if short := _short_before(flow, number, conflicts):
            yield from (_never_reaching(flow, load, letter, number, short) for load, letter in short.items())
            continue
        tensor, site = flow.sources[number].tensor, flow.sources[number].site
        first = min(conflicts, key=lambda conflict: "bhmndegw".find(conflict.letter[0]))
        reason, beside = _reason(flow, number, first), tuple(_addressing(flow, number, culprits))
        kind = "load" if site.operation == "load" else "store"
        yield Suspect(kind, tensor, site, blamed(site, right), reason, beside=beside)


def _reason(flow: Flow, culprit: int, conflict: Conflict) -> str:
    own, due = conflict.example if culprit in conflict.left else reversed(conflict.example)
    others = conflict.right if culprit in conflict.left else conflict.left
    names = " and ".join(sorted({flow.sources[number].tensor for number in others}))
    word, source = AXIS_WORDS[conflict.letter[0]], flow.sources[culprit]
    does = f"{source.tensor} is {'read' if source.site.operation == 'load' else 'written'}"
    if own == due:
        return f"{does} in no block of rows and columns, and a dot sums it with {names}"
    where = "outside its elements" if own < 0 else f"at {word} {own}"
    return f"{does} {where} where it meets {word} {due} of {names}"


def _addressing(flow: Flow, culprit: int, culprits: Collection[int]) -> Iterator[Chain]:
    """The lines that made the address of a misread access and that of no right one, the last first.

    Where others of its kernel are misread and share such lines, these first.
    """
    own = shared = flow.slices.get(culprit, frozenset())
    kernel = flow.sources[culprit].site.kernel
    for number, lines in flow.slices.items():
        if number in culprits:
            if flow.sources[number].site.kernel == kernel:
                shared &= lines
        # What never reaches the same heads or batches, and met nothing that does, may well be wrong too.
        elif not any(_is_short(flow, culprit, x) and not _is_all(flow, number, x) for x in "bhg"):
            own -= lines
    for line in sorted(own, key=lambda line: (line in shared, line), reverse=True):
        yield flow.lines[line]


def _is_all(flow: Flow, number: int, letter: str) -> bool:
    """Whether an access reaches every head, row, ...; false where that is not known."""
    reached = flow.reached.get((number, letter))
    return reached is not None and bool(reached.all())


def _is_short(flow: Flow, number: int, letter: str) -> bool:
    return (number, letter) in flow.reached and not _is_all(flow, number, letter)


def _short_before(flow: Flow, culprit: int, conflicts: Sequence[Conflict]) -> dict[int, str]:
    """The loads of an earlier kernel that made a buffer which seems misread, where they never reach what it misses."""
    site, letters = flow.sources[culprit].site, sorted({conflict.letter for conflict in conflicts})
    found: dict[int, str] = {}
    for node in flow.nodes if culprit in flow.derived else ():
        tiles = [made.lanes for made in node.operands if made.lanes is not None and node.site == site]
        for lanes in tiles:
            for letter in letters:
                loads = sorted(lanes.origins.get(letter, ()))
                found |= {load: letter for load in loads if _is_short(flow, load, letter)}
    return found


def _never_reaching(flow: Flow, load: int, letter: str, culprit: int, short: Collection[int]) -> Suspect:
    source, buffer = flow.sources[load], flow.sources[culprit].tensor
    missed, word = int(np.flatnonzero(~flow.reached[load, letter])[0]), AXIS_WORDS[letter]
    reason = f"{source.tensor} is never read at {word} {missed}, and {buffer}, which is made of it, is used there"
    beside = tuple(_addressing(flow, load, short))
    return Suspect("load", source.tensor, source.site, source.site.lines, reason, beside=beside)


# --- the vote


def culprits_of(flow: Flow) -> dict[int, list[Conflict]]:
    """The loads and stores that disagree with most others, by number, with what they disagree in."""
    pending = []
    for conflict in flow.conflicts:
        # A later kernel's are about what an earlier one stored that has conflicts itself.
        is_of_earlier = conflict.left <= flow.derived or conflict.right <= flow.derived
        if conflict.site.kernel == flow.conflicts[0].site.kernel or not is_of_earlier:
            pending.append(conflict)
    culprits = _confined(flow, pending)
    while pending := [conflict for conflict in pending if not culprits.keys() & _both(conflict)]:
        culprit = _culprit(flow, pending)
        culprits[culprit] = [conflict for conflict in pending if culprit in _both(conflict)]
    return culprits


def _both(conflict: Conflict) -> frozenset[int]:
    return conflict.left | conflict.right


def _confined(flow: Flow, conflicts: Sequence[Conflict]) -> dict[int, list[Conflict]]:
    """Those that never reach some head, batch, row or key, where all that they disagree with reach every one.

    So do most accesses of a kernel that takes too little of its program's number: what stands alone is right then.
    """
    found = defaultdict[int, list[Conflict]](list)
    for conflict in conflicts:
        whole = {number for number in _both(conflict) if _is_all(flow, number, conflict.letter)}
        for few, many in ((conflict.left, conflict.right), (conflict.right, conflict.left)):
            if conflict.letter in "bhgmn" and many <= whole and not few & whole:
                for number in few:
                    found[number].append(conflict)
    return dict(found)


def _culprit(flow: Flow, conflicts: Sequence[Conflict]) -> int:
    """Of two that disagree the one that stands alone; among equals one that reads no block, or that agrees least.

    Of a load and a store alone the load is right where something known is made of it, and wrong where nothing is.
    """
    votes, agreed, used = defaultdict[int, float](float), Counter[int](), Counter[Site]()
    for number, letter in {(number, conflict.letter) for conflict in conflicts for number in _both(conflict)}:
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
    flow, found = run.flow, dict[Site, Conflict]()
    for conflict in flow.conflicts:
        if "/" in conflict.letter and not _both(conflict) & flow.irregular:
            found.setdefault(conflict.site, conflict)
    for site, conflict in found.items():
        left, right = (AXIS_WORDS[letter] for letter in conflict.letter.split("/"))
        reason = f"the dot sums over {left}s on its left and over {right}s on its right"
        # It may be the address by which one of them is loaded across.
        beside = tuple(flow.sources[number].site.lines for number in sorted(_both(conflict)))
        yield Suspect("value", "", site, site.lines, reason, beside=beside)


def is_loaded(node: Node) -> bool:
    """Whether a tile is what was loaded, but for a cast or a constant, and no sum of others."""
    while node.site.operation not in ("load", "reduce") and len(node.operands) == 1:
        node = node.operands[0]
    return node.site.operation == "load"
