"""Loads and stores of other elements."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import product

from ...frontends.triton.interpreter.dataflow import Conflict, Flow, Node, Site
from ...model.intermediates import AXIS_WORDS
from ..follow import FollowedRun
from .diagnoses import Chain, Suspect, blamed


def misread_in(flow: Flow) -> Iterator[Suspect]:
    culprits = culprits_of(flow)
    right = [source.site for number, source in enumerate(flow.sources) if number not in culprits]
    for number, conflicts in culprits.items():
        own, first = flow.sources[number], min(conflicts, key=_coarsest)
        short = _short_before(flow, number, conflicts)
        for load, letter in short.items():
            source = flow.sources[load]
            missed = int((~source.reached[letter]).argmax())
            never = f"{source.tensor} is never read at {AXIS_WORDS[letter]} {missed}"
            reason = f"{never}, and {own.tensor}, which is made of it, is used there"
            lines, beside = source.site.lines, _addressing(flow, load, short)
            yield Suspect("load", source.tensor, source.site, lines, reason, beside=beside)
        if short:
            continue
        reason, beside = _reason(flow, number, first), _addressing(flow, number, culprits)
        kind, lines = "load" if own.is_load else "store", blamed(own.site, right)
        yield Suspect(kind, own.tensor, own.site, lines, reason, beside=beside)


def _coarsest(conflict: Conflict) -> int:
    return "bhmndegw".find(conflict.letter[0])


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
    source = flow.sources[culprit]
    own = shared = source.behind
    few = [*filter(partial(_is_short, flow, culprit), "bhg")]
    for number, other in enumerate(flow.sources):
        if number in culprits:
            shared &= other.behind if other.site.kernel == source.site.kernel else shared
        # What never reaches the same heads or batches, and met nothing that does, may well be wrong too.
        elif all(map(partial(_is_all, flow, number), few)):
            own -= other.behind
    found = sorted(own, key=lambda line: (line in shared, line), reverse=True)
    return tuple(map(flow.lines.__getitem__, found))


def _is_all(flow: Flow, number: int, letter: str) -> bool:
    reached = flow.sources[number].reached.get(letter)
    return reached is not None and bool(reached.all())


def _is_short(flow: Flow, number: int, letter: str) -> bool:
    return letter in flow.sources[number].reached and not _is_all(flow, number, letter)


def _short_before(flow: Flow, culprit: int, conflicts: Sequence[Conflict]) -> dict[int, str]:
    """By load that a culprit is made of, the axis of which it reads a part."""
    own, found = flow.sources[culprit], dict[int, str]()
    letters = sorted({conflict.letter for conflict in conflicts})
    for node in flow.nodes if own.is_derived else ():
        for made, letter in product(node.operands if node.site == own.site else (), letters):
            for load in sorted(made.lanes.origins.get(letter, ())):
                found |= {load: letter} if _is_short(flow, load, letter) else {}
    return found


# --- the vote


def culprits_of(flow: Flow) -> dict[int, list[Conflict]]:
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


def transposed(run: FollowedRun) -> Iterator[Suspect]:
    found = dict[Site, Conflict]()
    for conflict in run.flow.conflicts:
        are_irregular = [run.flow.sources[number].is_irregular for number in _both(conflict)]
        if "/" in conflict.letter and not any(are_irregular):
            found.setdefault(conflict.site, conflict)
    for site, conflict in found.items():
        left, right = map(AXIS_WORDS.__getitem__, conflict.letter.split("/"))
        reason = f"the dot sums over {left}s on its left and over {right}s on its right"
        beside = tuple(run.flow.sources[at].site.lines for at in sorted(_both(conflict)))
        yield Suspect("value", "", site, site.lines, reason, beside=beside)


def is_loaded(node: Node) -> bool:
    while node.site.operation not in ("load", "reduce") and len(node.operands) == 1:
        node = node.operands[0]
    return node.site.operation == "load"
