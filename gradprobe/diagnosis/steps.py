"""What explains the results of a sharded target's ranks: blocks of a ring that are left out, doubled or another's.

Each rank's rows of LSE, O and dQ depend on its own steps alone, so they are explained rank by rank. dK and dV of a
shard are sums over ranks: what of each rank's part they hold is solved for, and must come out in whole numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import torch
from torch import Tensor

from ..faults.hypothesis import Observed
from ..inputs.shards import TAKEN_FOR, Shards
from ..model.number import LAMBDA, ranks_in_words
from ..model.report import CONSISTENT, NAMED
from ..reference import Tile, evaluate
from .blocks import BlockFault, Blocks

POSITIONS = "positions"
"""The kind of fault that is all ranks' own."""
_FORWARD, _ROWS, _KEYS = ("LSE", "O"), ("dQ",), ("dK", "dV")
# How near a whole number the share of a rank's part must come: bfloat16 rounds single elements by less than this.
_WHOLE = 0.05
# Explanations that differ by less are as good: a few elements lie by chance where both allow.
_AS_GOOD = 0.01
# Batches and key heads in which explanations are tried: the worst of them.
_FEW = 8


@dataclass(frozen=True)
class Explained:
    """What explains some results of one shard."""

    kind: str
    words: str
    """With "{ranks}" where the rank stands that does it."""
    rank: int
    step: int | None
    shard: int
    """Whose results these are."""
    names: tuple[str, ...]
    explained: float
    wrong: int
    """How many elements."""

    @property
    def said(self) -> tuple[str, int | None, str]:
        """What is the same for one fault in several ranks and results."""
        return self.kind, self.step, self.words


def explanations(seen: Observed, shards: Shards) -> list[Explained]:
    """What explains the results that are wrong, of each shard: one mask of all ranks, else steps of single ones."""
    found = list(_of_positions(seen, shards))
    if not found:
        found = [*_of_rows(seen, shards)]
        found += _of_keys(seen, shards, found)
    return found


class _Score:
    """How much of what is wrong some predictions give, counted element by element."""

    def __init__(self, seen: Observed) -> None:
        self._seen = seen
        self.wrong, self.hit, self.spoiled = 0, 0, 0

    def add(
        self, name: str, at: tuple[int | slice | Tensor, ...], predicted: Tensor, bound: Tensor | None = None
    ) -> None:
        """Counts one part of an intermediate.

        Args:
            bound: what is allowed to the predicted values, where they are another part's.
        """
        seen = self._seen
        actual, expected, right = seen.actual[name][at], seen.expected[name][at], seen.right[name][at]
        dtype = seen.measured.trace.values[name].dtype
        precision = seen.measured.comparison.precision
        unit = max(torch.finfo(dtype).eps, precision.operand, precision.matrix, precision.accumulate)
        # What a fault adds is rounded as often as the rest.
        allowed = seen.allowed[name][at] + LAMBDA * unit * (predicted - expected).abs()
        allowed = allowed if bound is None else torch.maximum(allowed, bound)
        same = ((actual - predicted).abs() <= allowed) | (actual == predicted)
        self.wrong += int((~right).sum())
        self.hit += int((same & ~right).sum())
        self.spoiled += int((right & ~same).sum())

    @property
    def explained(self) -> float:
        return max(0.0, (self.hit - self.spoiled) / self.wrong) if self.wrong else 0.0


@dataclass(frozen=True)
class _Head:
    """One batch and key head, with its blocks and what they should give."""

    batch: int
    group: int
    heads: slice
    blocks: Blocks
    lse: Tensor
    """[G, M] as the target's backward finds it: its own where it exposes that."""
    delta: Tensor


def _heads(seen: Observed, shards: Shards, names: Sequence[str]) -> list[_Head]:
    """The batches and key heads with wrong elements of some intermediates, the worst of them: a few."""
    x, found = seen.x, []
    size = x.q.shape[1] // x.k.shape[1]
    for batch in range(x.q.shape[0]):
        for group in range(x.k.shape[1]):
            heads = slice(group * size, (group + 1) * size)
            wrong = sum(int((~seen.right[name][batch, _heads_of(name, group, heads)]).sum()) for name in names)
            if wrong:
                found.append((-wrong, batch, group, heads))
    return [_head(seen, shards, *one) for _, *one in sorted(found, key=lambda one: one[:3])[:_FEW]]  # type: ignore[arg-type]


def _heads_of(name: str, group: int, heads: slice) -> slice:
    return slice(group, group + 1) if name in _KEYS else heads


def _head(seen: Observed, shards: Shards, batch: int, group: int, heads: slice) -> _Head:
    blocks = Blocks.of(seen.x, shards, batch, group)
    right = evaluate(seen.x, Tile(batch, heads, slice(0, seen.x.q.shape[2])))
    lse = seen.actual["LSE"][batch, heads] if "LSE" in seen.actual else right["LSE"]
    o = seen.actual["O"][batch, heads] if "O" in seen.actual else right["O"]
    return _Head(batch, group, heads, blocks, lse, (blocks.do * o).sum(-1))


def _of_rows(seen: Observed, shards: Shards) -> Iterator[Explained]:
    """What explains LSE and O, then dQ, of each rank that has them wrong."""
    for group in (_FORWARD, _ROWS):
        names = tuple(name for name in group if name in seen.own)
        heads = _heads(seen, shards, names) if names else []
        fitting = [list(_fitting(seen, shards, heads, names, rank)) for rank in range(shards.ranks) if heads]
        yield from _of_each(fitting)


def _of_each(fitting: Sequence[Sequence[Explained]]) -> Iterator[Explained]:
    """One explanation of each shard; of several that are as good, the one that explains most of the other shards."""
    best = [[one for one in every if one.explained > every[0].explained - _AS_GOOD] for every in fitting]
    common = Counter(one.said for every in best for one in every)
    for every in best:
        yield from sorted(every, key=lambda one: -common[one.said])[:1]


def _fitting(
    seen: Observed, shards: Shards, heads: Sequence[_Head], names: tuple[str, ...], rank: int
) -> list[Explained]:
    """The changes of one rank's steps that explain what is wrong in its rows, best first."""
    first, found = heads[0], list[Explained]()
    rows = first.blocks.rows(rank)
    if all(bool(seen.right[name][one.batch, one.heads][:, rows].all()) for name in names for one in heads):
        return []
    as_given = _Score(seen)
    _add_rows(as_given, first, names, rank, first.blocks.right(rank))
    if as_given.explained > CONSISTENT:  # it follows from what came before
        return []
    for number, change in enumerate(first.blocks.changes(rank)):
        score = _Score(seen)
        _add_rows(score, first, names, rank, change)
        if score.explained < CONSISTENT:
            continue
        for head in heads[1:]:
            _add_rows(score, head, names, rank, nth(head.blocks.changes(rank), number))
        found.append(Explained(change.kind, change.words, rank, change.step, rank, names, score.explained, score.wrong))
    if names == _ROWS:
        found = [*_of_other_shard(seen, shards, heads, "dQ", "m", rank), *found]
    return sorted(found, key=lambda one: -one.explained)


def nth(changes: Iterator[BlockFault], number: int) -> BlockFault:
    """One of several."""
    return next(islice(changes, number, None))


def _add_rows(score: _Score, head: _Head, names: Sequence[str], rank: int, change: BlockFault) -> None:
    rows = head.blocks.rows(rank)
    given = dict[str, Tensor]()
    if set(names) & set(_FORWARD):
        given |= head.blocks.forward(rank, change)
    if set(names) & set(_ROWS):
        given |= head.blocks.backward(rank, change, *head.blocks.of_rows(rank, head.lse, head.delta))
    for name in names:
        at = torch.arange(head.heads.start, head.heads.stop, device=rows.device)[:, None]
        score.add(name, (head.batch, at, rows[None]), given[name])


def _of_other_shard(
    seen: Observed, shards: Shards, heads: Sequence[_Head], name: str, letter: str, rank: int
) -> Iterator[Explained]:
    """Whether a rank holds the result that belongs to another."""
    own = torch.tensor(shards.held[letter][rank])
    for other in (one for one in range(shards.ranks) if one != rank):
        theirs = torch.tensor(shards.held[letter][other])
        if len(theirs) != len(own):
            continue
        score = _Score(seen)
        for head in heads:
            of = _heads_of(name, head.group, head.heads)
            at = torch.arange(of.start, of.stop)[:, None]
            there = (head.batch, at, theirs[None])
            score.add(name, (head.batch, at, own[None]), seen.expected[name][there], seen.allowed[name][there])
        if score.explained >= CONSISTENT:
            before = (rank - other) % shards.ranks
            which = {1: "the rank before it", shards.ranks - 1: "the next rank"}
            whose = which.get(before, f"the rank {before} before it")
            words = f"{{names}} of {{ranks}} is that of {whose} in the ring"
            yield Explained("misrouted", words, rank, None, rank, (name,), score.explained, score.wrong)


def _of_keys(seen: Observed, shards: Shards, of_rows: Sequence[Explained]) -> Iterator[Explained]:
    """What explains dK and dV of each shard that has them wrong: what explains dQ; parts that are missing, or strange.

    Args:
        of_rows: what explains the rows of ranks.
    """
    known = {(one.rank, *one.said) for one in of_rows}
    for name in (name for name in _KEYS if name in seen.own):
        heads = _heads(seen, shards, [name])
        parts = [head.blocks.contributions(head.lse, head.delta)[name] for head in heads]
        for shard in range(shards.ranks):
            keys = heads[0].blocks.keys(shard)
            if all(bool(seen.right[name][head.batch, head.group][keys].all()) for head in heads):
                continue
            as_given = _Score(seen)
            for head, part in zip(heads, parts, strict=True):
                as_given.add(name, (head.batch, head.group, keys), part.sum(0)[keys])
            if as_given.explained > CONSISTENT:  # it follows from what came before
                continue
            changes = list(_of_changes(seen, heads, parts, name, shard))
            alike = [one for one in changes if (one.rank, *one.said) in known]
            found = [*alike, *_of_other_shard(seen, shards, heads, name, "n", shard)]
            found += [*_of_parts(seen, shards, heads, parts, name, shard), *changes]
            yield from sorted(found, key=lambda one: -round(one.explained / _AS_GOOD))[:1]


def _of_parts(
    seen: Observed, shards: Shards, heads: Sequence[_Head], parts: Sequence[Tensor], name: str, shard: int
) -> Iterator[Explained]:
    """How often each rank's part, of this shard's keys or another's, is in what came: solved for, in whole numbers."""
    places = [shards.held["n"][owner] for owner in range(shards.ranks)]
    if len({len(own) for own in places}) > 1:
        return
    atoms = [(rank, owner) for rank in range(shards.ranks) for owner in range(shards.ranks)]
    whole = torch.stack([torch.cat([part[rank][places[owner]] for part in parts]) for rank, owner in atoms])
    kept = [at for at, atom in enumerate(whole) if float(atom.abs().max()) > 0]
    came = torch.cat([seen.actual[name][head.batch, head.group][places[shard]] for head in heads])
    if not bool(came.isfinite().all()):
        return
    matrix = whole[kept].flatten(1).mT
    shares = torch.linalg.lstsq(matrix.cpu(), came.flatten()[:, None].cpu()).solution[:, 0]
    counts = shares.round()
    if float((shares - counts).abs().max()) > _WHOLE or float(counts.abs().max()) > 2:
        return
    score = _Score(seen)
    for head, part in zip(heads, parts, strict=True):
        terms = zip(kept, counts.tolist(), strict=True)
        value = torch.zeros_like(part[0][places[shard]])
        for at, count in terms:
            value += count * part[atoms[at][0]][places[atoms[at][1]]]
        score.add(name, (head.batch, head.group, torch.tensor(places[shard])), value)
    if score.explained < CONSISTENT:
        return
    of = {atoms[at]: int(count) for at, count in zip(kept, counts.tolist(), strict=True)}
    missing = [rank for rank, owner in of if owner == shard and of[rank, owner] == 0]
    twice = [rank for rank, owner in of if owner == shard and of[rank, owner] == 2]
    strange = [(rank, owner) for rank, owner in of if owner != shard and of[rank, owner]]
    told = [f"the part of {ranks_in_words(missing)} is missing"] if missing else []
    told += [f"the part of {ranks_in_words(twice)} is counted twice"] if twice else []
    told += [f"a part of {ranks_in_words([rank for rank, _ in strange])} is another shard's"] if strange else []
    if not told:
        return
    at_fault = (missing + twice + [rank for rank, _ in strange])[0]
    kind = "misrouted" if strange else "missing-step" if missing else "twice"
    words = f"of {{names}} in the {{shards}} {' and '.join(told)}"
    alone = len({*missing, *twice}) == 1 and not strange
    step = (at_fault - shard) % shards.ranks if alone else None
    yield Explained(kind, words, at_fault, step, shard, (name,), score.explained, score.wrong)


def _of_changes(
    seen: Observed, heads: Sequence[_Head], parts: Sequence[Tensor], name: str, shard: int
) -> Iterator[Explained]:
    """What one rank does otherwise in one step, as it shows in the gradients of the keys."""
    first, keys = heads[0], heads[0].blocks.keys(shard)
    for rank in range(first.blocks.ranks):
        step = (rank - shard) % first.blocks.ranks
        for number, change in enumerate(first.blocks.of_step(rank, step)):
            score = _Score(seen)
            for head, part in zip(heads, parts, strict=True):
                same = change if head is first else nth(head.blocks.of_step(rank, step), number)
                other = head.blocks.backward(rank, same, *head.blocks.of_rows(rank, head.lse, head.delta))[name]
                score.add(name, (head.batch, head.group, keys), (part.sum(0) - part[rank] + other)[keys])
                if score.explained < CONSISTENT:
                    break
            if score.explained >= CONSISTENT:
                yield Explained(change.kind, change.words, rank, step, shard, (name,), score.explained, score.wrong)


def _of_positions(seen: Observed, shards: Shards) -> Iterator[Explained]:
    """Whether the target masks as if its shards were other parts of the sequence."""
    case, names = seen.case, tuple(name for name in (*_FORWARD, *_ROWS, *_KEYS) if name in seen.own)
    length, first = case.seqlen_q, shards.held["m"][0]
    if not (names and case.causal and length == case.seqlen_k and len(first) * shards.ranks == length):
        return
    heads = _heads(seen, shards, names)
    for taken, way in TAKEN_FOR.items():
        believed = None if length % (2 * shards.ranks) else way(length, shards.ranks)
        if believed is None or believed == list(map(list, shards.held["m"])):
            continue
        place = torch.empty(length, dtype=torch.long)
        place[list(chain(*shards.held["m"]))] = torch.tensor(list(chain(*believed)))
        score = _Score(seen)
        for head in heads:
            _add_masked(score, head, names, (place[None] <= place[:, None]).to(head.lse.device))
        if score.explained >= NAMED:
            words = f"the mask assumes {taken} shards, and they are {case.shards}"
            every = range(shards.ranks)
            yield from (Explained(POSITIONS, words, r, None, r, names, score.explained, score.wrong) for r in every)
            return


def _add_masked(score: _Score, head: _Head, names: Sequence[str], valid: Tensor) -> None:
    """Counts what another mask, [M, N], would give."""
    blocks, added = head.blocks, dict[str, Tensor]()
    for rank in range(blocks.ranks):
        change = replace(blocks.right(rank), valid=valid[blocks.rows(rank)])
        _add_rows(score, head, [name for name in names if name not in _KEYS], rank, change)
        given = blocks.backward(rank, change, *blocks.of_rows(rank, head.lse, head.delta))
        added = {name: given[name] + added.get(name, 0) for name in _KEYS}
    for name in (name for name in names if name in _KEYS):
        score.add(name, (head.batch, head.group), added[name])
