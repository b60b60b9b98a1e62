"""Loads and stores of other elements than those that a kernel works on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from operator import attrgetter

import numpy as np

from ...frontends.triton.interpreter.dataflow import Conflict, Flow, Node, Site
from ...model.intermediates import AXIS_WORDS
from ..follow import FollowedRun
from .diagnoses import Chain, Suspect, blamed


def misread(run: FollowedRun) -> Iterator[Suspect]:
    """The accesses whose indices disagree with most that they meet."""
    return misread_in(run.flow)


def misread_in(flow: Flow) -> Iterator[Suspect]:
    """The same, of kernels of any language."""
    culprits = culprits_of(flow)
    right = [source.site for number, source in enumerate(flow.sources) if number not in culprits]
    for number, conflicts in culprits.items():
        own = flow.sources[number]
        short = _short_before(flow, number, conflicts)
        for load, letter in short.items():
            source = flow.sources[load]
            missed = int(np.flatnonzero(~source.reached[letter])[0])
            never = f"{source.tensor} is never read at {AXIS_WORDS[letter]} {missed}"
            reason = f"{never}, and {own.tensor}, which is made of it, is used there"
            lines, beside = source.site.lines, _addressing(flow, load, short)
            yield Suspect("load", source.tensor, source.site, lines, reason, beside=beside)
        if not short:
            first = min(conflicts, key=lambda conflict: "bhmndegw".find(conflict.letter[0]))
            kind, lines = "load" if own.is_load else "store", blamed(own.site, right)
            reason, beside = _reason(flow, number, first), _addressing(flow, number, culprits)
            yield Suspect(kind, own.tensor, own.site, lines, reason, beside=beside)


def _reason(flow: Flow, culprit: int, conflict: Conflict) -> str:
    (own, due), others = conflict.example, conflict.right
    if culprit not in conflict.left:
        own, due, others = due, own, conflict.left
    names = " and ".join(sorted({flow.sources[number].tensor for number in others}))
    word, source = AXIS_WORDS[conflict.letter[0]], flow.sources[culprit]
    does = f"{source.tensor} is {'read' if source.is_load else 'written'}"
    if own == due:
        return f"{does} in no block of rows and columns, and a dot sums it with {names}"
    where = "outside its elements" if own < 0 else f"at {word} {own}"
    return f"{does} {where} where it meets {word} {due} of {names}"


def _addressing(flow: Flow, culprit: int, culprits: Collection[int]) -> tuple[Chain, ...]:
    own = shared = flow.sources[culprit].behind
    few = [*filter(partial(_is_short, flow, culprit), "bhg")]
    for number, source in enumerate(flow.sources):
        if number in culprits:
            if source.site.kernel == flow.sources[culprit].site.kernel:
                shared &= source.behind
        # What never reaches the same heads or batches, and met nothing that does, may well be wrong too.
        elif all(map(partial(_is_all, flow, number), few)):
            own -= source.behind
    found = sorted(own, key=lambda line: (line in shared, line), reverse=True)
    return tuple(map(flow.lines.__getitem__, found))


def _is_all(flow: Flow, number: int, letter: str) -> bool:
    reached = flow.sources[number].reached.get(letter)
    return reached is not None and bool(reached.all())


def _is_short(flow: Flow, number: int, letter: str) -> bool:
    return letter in flow.sources[number].reached and not _is_all(flow, number, letter)


def _short_before(flow: Flow, culprit: int, conflicts: Sequence[Conflict]) -> dict[int, str]:
    site, found = flow.sources[culprit].site, dict[int, str]()
    letters = sorted({*map(attrgetter("letter"), conflicts)})
    for node in flow.nodes if flow.sources[culprit].is_derived else ():
        for made in node.operands if node.site == site else ():
            for letter in letters:
                for load in sorted(made.lanes.origins.get(letter, ())):
                    if _is_short(flow, load, letter):
                        found[load] = letter
    return found


# --- the vote


def culprits_of(flow: Flow) -> dict[int, list[Conflict]]:
    """By number, the accesses that disagree with most others, and in what."""
    pending, derived = [], {n for n, source in enumerate(flow.sources) if source.is_derived}
    for conflict in flow.conflicts:
        # A later kernel's are about what an earlier one stored that has conflicts itself.
        is_of_earlier = conflict.left <= derived or conflict.right <= derived
        if conflict.site.kernel == flow.conflicts[0].site.kernel or not is_of_earlier:
            pending.append(conflict)
    culprits = _confined(flow, pending)
    while pending := [each for each in pending if culprits.keys().isdisjoint(_both(each))]:
        culprit = _culprit(flow, pending)
        culprits[culprit] = [each for each in pending if culprit in _both(each)]
    return culprits


def _both(conflict: Conflict) -> frozenset[int]:
    return conflict.left | conflict.right


def _confined(flow: Flow, conflicts: Sequence[Conflict]) -> dict[int, list[Conflict]]:
    found = defaultdict[int, list[Conflict]](list)
    # So do most of a kernel that takes too little of its program's number: what stands alone is right then.
    for conflict in conflicts:
        whole = {number for number in _both(conflict) if _is_all(flow, number, conflict.letter)}
        for few, many in ((conflict.left, conflict.right), (conflict.right, conflict.left)):
            if conflict.letter in "bhgmn" and many <= whole and not few & whole:
                for number in few:
                    found[number].append(conflict)
    return dict(found)


def _culprit(flow: Flow, conflicts: Sequence[Conflict]) -> int:
    """The one that stands alone, reads no block, is of no use or agrees least, in this order."""
    votes, used = defaultdict[int, float](float), Counter[Site]()
    letters = defaultdict[int, set[str]](set)
    for conflict in conflicts:
        for side in (conflict.left, conflict.right):
            for number in side:
                votes[number] += 1 / len(side)
                letters[number].add(conflict.letter)
    for node in flow.nodes:
        used[node.site] += 1 if node.used else -1

    def doubt(number: int) -> tuple[float, ...]:
        source = flow.sources[number]
        is_unused = 1 if not source.is_load else 0 if used[source.site] > 0 else 2
        agreed = sum(source.agreed[letter] for letter in letters[number])
        return votes[number], source.is_irregular, is_unused, -agreed, number

    return max(votes, key=doubt)


# --- dots over different axes


def _is_any_irregular(flow: Flow, numbers: Collection[int]) -> bool:
    return any(flow.sources[number].is_irregular for number in numbers)


def transposed(run: FollowedRun) -> Iterator[Suspect]:
    """The dots that sum over different axes on their left and right."""
    flow, sites = run.flow, set[Site]()
    for conflict in flow.conflicts:
        both, site = _both(conflict), conflict.site
        if "/" in conflict.letter and site not in sites and not _is_any_irregular(flow, both):
            sites.add(site)
            left, right = map(AXIS_WORDS.__getitem__, conflict.letter.split("/"))
            reason = f"the dot sums over {left}s on its left and over {right}s on its right"
            beside = tuple(flow.sources[number].site.lines for number in sorted(both))
            yield Suspect("value", "", site, site.lines, reason, beside=beside)


def is_loaded(node: Node) -> bool:
    """Whether a tile is what was loaded, but for a cast or a constant."""
    while node.site.operation not in ("load", "reduce") and len(node.operands) == 1:
        node = node.operands[0]
    return node.site.operation == "load"
