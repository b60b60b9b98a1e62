"""What explains the results of a sharded target's ranks: blocks of a ring that are left out, doubled or another's.

Each rank's rows of LSE, O and dQ depend on its own steps alone. dK and dV of a shard are sums over ranks: what of each
rank's part they hold is also solved for, and must come out in whole numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from ..faults.hypothesis import Observed
from ..inputs.shards import TAKEN_FOR, Shards
from ..model.number import LAMBDA, ranks_in_words
from ..model.report import CONSISTENT, NAMED
from .blocks import KEYS, Blocks

POSITIONS = "positions"
"""The kind of fault that is all ranks' own."""
# How near a whole number the share of a rank's part must come: bfloat16 rounds single elements by less than this.
_WHOLE = 0.05
# Explanations that differ by less are as good: a few elements lie by chance where both allow.
_AS_GOOD = 0.01
# By intermediate and rank, a shard of what the ranks give.
_Results = Mapping[tuple[str, int], Tensor]


@dataclass(frozen=True)
class Explained:
    """What explains one result of one shard."""

    kind: str
    words: str
    """With "{ranks}" where the rank stands that does it."""
    rank: int
    step: int | None
    name: str
    shard: int
    """Whose result it is."""
    explained: float
    wrong: int
    """How many elements."""

    @property
    def said(self) -> tuple[str, int | None, str]:
        """What is the same for one fault in several ranks and results."""
        return self.kind, self.step, self.words


@dataclass(frozen=True)
class _Candidate:
    """What a rank may do otherwise."""

    kind: str
    words: str
    rank: int
    step: int | None
    predicted: _Results
    """What results it would change, and to what."""
    other: int | None = None
    """Whose values these are, where they are another rank's."""


def explanations(seen: Observed, shards: Shards) -> list[Explained]:
    """What explains the results that are wrong, of each shard: one mask of all ranks, else steps of single ones.

    Of several explanations that are as good, the one that explains most of the other shards and results.
    """
    names = [name for name in ("LSE", "O", "dQ", *KEYS) if name in seen.own]
    blocks, ranks = Blocks.of(seen, shards, names), range(shards.ranks)
    if blocks is None:
        return []
    if found := list(_of_positions(blocks, names)):
        return found
    own = [blocks.given(names, rank, blocks.right(rank)) for rank in ranks]
    given = _together(blocks, own)
    fitting = {key: list[Explained]() for key, value in given.items() if _is_own(blocks, key, value)}
    for candidate in _candidates(blocks, own, given, list(fitting)):
        for name, shard in candidate.predicted.keys() & fitting.keys():
            hit, wrong = _score(blocks, (name, shard), candidate.predicted[name, shard], candidate.other)
            if hit >= CONSISTENT * wrong:
                of = Explained(
                    candidate.kind, candidate.words, candidate.rank, candidate.step, name, shard, hit / wrong, wrong
                )
                fitting[name, shard].append(of)
    best = [_best(every) for every in fitting.values() if every]
    common = Counter(one.said for every in best for one in every)
    return [max(every, key=lambda one: common[one.said]) for every in best]


def _best(fitting: Sequence[Explained]) -> list[Explained]:
    most = max(one.explained for one in fitting)
    return [one for one in fitting if one.explained > most - _AS_GOOD]


def _score(blocks: Blocks, at: tuple[str, int], predicted: Tensor, other: int | None = None) -> tuple[int, int]:
    """How many of the wrong elements a prediction gives, less those that it spoils; and how many are wrong."""
    (name, rank), seen = at, blocks.seen
    index = blocks.at(name, rank)
    actual, expected, right = seen.actual[name][index], seen.expected[name][index], seen.right[name][index]
    precision, dtype = seen.measured.comparison.precision, seen.measured.trace.values[name].dtype
    unit = max(torch.finfo(dtype).eps, precision.operand, precision.matrix, precision.accumulate)
    # What a fault adds is rounded as often as the rest.
    allowed = seen.allowed[name][index] + LAMBDA * unit * (predicted - expected).abs()
    if other is not None:
        allowed = torch.maximum(allowed, seen.allowed[name][blocks.at(name, other)])
    same = ((actual - predicted).abs() <= allowed) | (actual == predicted)
    return int((same & ~right).sum()) - int((right & ~same).sum()), int((~right).sum())


def _is_own(blocks: Blocks, at: tuple[str, int], given: Tensor) -> bool:
    """Whether a result is wrong, and does not follow from what came before."""
    hit, wrong = _score(blocks, at, given)
    return wrong > 0 and hit <= CONSISTENT * wrong


def _together(blocks: Blocks, of_ranks: Sequence[Mapping[str, Tensor]]) -> dict[tuple[str, int], Tensor]:
    """The results, of what each rank gives."""
    found = dict[tuple[str, int], Tensor]()
    for name in of_ranks[0]:
        total = torch.stack([given[name] for given in of_ranks]).sum(0) if name in KEYS else None
        for rank, given in enumerate(of_ranks):
            found[name, rank] = given[name] if total is None else total[:, blocks.keys(rank)]
    return found


def _candidates(
    blocks: Blocks, own: Sequence[Mapping[str, Tensor]], given: _Results, wrong: Sequence[tuple[str, int]]
) -> Iterator[_Candidate]:
    for name, rank in wrong:
        if name in ("dQ", *KEYS):
            yield from _of_other_shard(blocks, name, rank)
        if name in KEYS:
            yield from _of_parts(blocks, [each[name] for each in own], name, rank)
    names = list(own[0])
    for rank in range(blocks.ranks):
        for change in blocks.changes(rank):
            changed, predicted = blocks.given(names, rank, change), dict[tuple[str, int], Tensor]()
            for name in names:
                if name not in KEYS:
                    predicted[name, rank] = changed[name]
                elif change.step is not None and change.weight is None:
                    owner = blocks.owner(rank, change.step)
                    more = (changed[name] - own[rank][name])[:, blocks.keys(owner)]
                    predicted[name, owner] = given[name, owner] + more
            yield _Candidate(change.kind, change.words, rank, change.step, predicted)


def _of_other_shard(blocks: Blocks, name: str, rank: int) -> Iterator[_Candidate]:
    """A rank holds the result that belongs to another."""
    size = blocks.at(name, rank)[-1].shape
    for other in (one for one in range(blocks.ranks) if one != rank and blocks.at(name, one)[-1].shape == size):
        before = (rank - other) % blocks.ranks
        which = {1: "the rank before it", blocks.ranks - 1: "the next rank"}
        words = f"{{names}} of {{ranks}} is that of {which.get(before, f'the rank {before} before it')} in the ring"
        theirs = blocks.seen.expected[name][blocks.at(name, other)]
        yield _Candidate("misrouted", words, rank, None, {(name, rank): theirs}, other)


def _of_parts(blocks: Blocks, parts: Sequence[Tensor], name: str, shard: int) -> Iterator[_Candidate]:
    """How often each rank's part, of this shard's keys or another's, is in what came: solved for, in whole numbers."""
    ranks, came = range(blocks.ranks), blocks.seen.actual[name][blocks.at(name, shard)]
    if len({len(blocks.keys(owner)) for owner in ranks}) > 1 or not bool(came.isfinite().all()):
        return
    atoms = {(rank, owner): parts[rank][:, blocks.keys(owner)] for rank in ranks for owner in ranks}
    atoms = {atom: part for atom, part in atoms.items() if bool((part != 0).any())}
    whole = torch.stack(list(atoms.values()))
    shares = torch.linalg.lstsq(whole.flatten(1).mT.cpu(), came.flatten()[:, None].cpu()).solution[:, 0]
    counts = shares.round()
    if float((shares - counts).abs().max()) > _WHOLE or float(counts.abs().max()) > 2:
        return
    of = dict(zip(atoms, counts.int().tolist(), strict=True))
    missing = [rank for rank, owner in of if owner == shard and of[rank, owner] == 0]
    twice = [rank for rank, owner in of if owner == shard and of[rank, owner] == 2]
    strange = [rank for rank, owner in of if owner != shard and of[rank, owner]]
    words = [f"the part of {ranks_in_words(missing)} is missing"] if missing else []
    words += [f"the part of {ranks_in_words(twice)} is counted twice"] if twice else []
    words += [f"a part of {ranks_in_words(strange)} is another shard's"] if strange else []
    if words:
        kind = "misrouted" if strange else "missing-step" if missing else "twice"
        at_fault, is_alone = (missing + twice + strange)[0], len({*missing, *twice}) == 1 and not strange
        step = (at_fault - shard) % blocks.ranks if is_alone else None
        predicted = {(name, shard): torch.einsum("a,a...->...", counts.to(whole.device), whole)}
        yield _Candidate(kind, f"of {{names}} in the {{shards}} {' and '.join(words)}", at_fault, step, predicted)


def _of_positions(blocks: Blocks, names: Sequence[str]) -> Iterator[Explained]:
    """Whether the target masks as if its shards were other parts of the sequence."""
    case, ranks, held = blocks.seen.case, range(blocks.ranks), blocks.shards.held.get("m", [[]])
    length = case.seqlen_q
    if not case.causal or length != case.seqlen_k or len(held[0]) * blocks.ranks != length:
        return
    for taken, way in TAKEN_FOR.items():
        believed = None if length % (2 * blocks.ranks) else way(length, blocks.ranks)
        if believed is None or believed == list(map(list, held)):
            continue
        place = torch.empty(length, dtype=torch.long)
        place[list(chain(*held))] = torch.tensor(list(chain(*believed)))
        valid = (place[None] <= place[:, None]).to(blocks.every.device)
        changes = [replace(blocks.right(rank), valid=valid[blocks.rows(rank)][None, None]) for rank in ranks]
        given = _together(blocks, [blocks.given(names, rank, change) for rank, change in enumerate(changes)])
        scores = {key: _score(blocks, key, value) for key, value in given.items()}
        hit, wrong = (sum(each) for each in zip(*scores.values(), strict=True))
        if hit >= NAMED * wrong:
            words = f"the mask assumes {taken} shards, and they are {case.shards}"
            for (name, rank), (_, own) in scores.items():
                yield Explained(POSITIONS, words, rank, None, name, rank, hit / wrong, own)
            return
