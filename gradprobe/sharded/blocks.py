"""Blocks: what the rows of a rank and the keys of another give, in some heads of a problem; and what they may give.

In step s of a ring, rank r meets the keys of rank (r - s) mod n, its owner there. All results are sums over blocks:
LSE (as the sum of exponentials), O and dQ of a rank over its steps, dK and dV of a shard over ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..faults.hypothesis import WrongRun
from ..reference import Tile
from .shards import Shards

KEYS = ("dK", "dV")
"""The gradients of keys: sums over ranks."""
_UNSCALED = "what came before is added to O by {ranks} without being scaled to the new LSE"
# Batches and key heads that are looked at: those with the most wrong elements.
_FEW = 8
Block = Mapping[str, Tensor]
"""By result, what is added to it: to LSE [X, G, m], O and dQ [X, G, m, ...] of rows, dK and dV [X, n, ...] of keys."""
Results = dict[tuple[str, int], Tensor]
"""By result and rank, its shard."""


@dataclass(frozen=True)
class RankChange:
    """What one rank may do otherwise than it should."""

    kind: str
    words: str
    """`the keys of {whose} are left out by {ranks}`."""
    rank: int
    step: int | None
    """None where it is no single one."""
    predicted: Results
    """The results that it would change, and what they would be."""
    other: int | None = None
    """Whose results these are, where they are another rank's."""


class Blocks:
    """X key heads, each with the G query heads of its group, in float64."""

    def __init__(self, seen: WrongRun, shards: Shards, heads: Tensor) -> None:
        """heads: [X] the numbers of key heads, counted through all batches."""
        self.seen, self.shards, self.ranks = seen, shards, shards.ranks
        x, groups = seen.x, seen.x.k.shape[1]
        size = x.q.shape[1] // groups
        self._scale, batch, group = x.scale, heads // groups, heads % groups
        self._batch, self._group = batch[:, None], group[:, None]
        self._heads = self._group * size + torch.arange(size, device=heads.device)
        self._q, self._do = x.q[self._batch, self._heads], x.do[self._batch, self._heads]
        self._k, self._v = x.k[self._batch, self._group], x.v[self._batch, self._group]
        rows, valid = slice(0, x.q.shape[2]), list[Tensor]()
        for of, at in zip(batch.tolist(), group.tolist(), strict=True):
            valid.append(x.valid(Tile(of, slice(at * size, (at + 1) * size), rows))[:1])
        self._valid = torch.stack(valid)
        scores = (self._scale * self._q @ self._k.mT).masked_fill(~self._valid, -torch.inf)
        self._lse = lse = scores.logsumexp(-1)
        # As the target's backward finds them: its own where it exposes them.
        o = self._own("O", (scores - _finite(lse)[..., None]).exp() @ self._v)
        self._own_lse, self._delta = self._own("LSE", lse), (self._do * o).sum(-1)

    @staticmethod
    def of(seen: WrongRun, shards: Shards, names: Sequence[str]) -> Blocks | None:
        """The key heads with the most wrong elements of some intermediates; None where none is wrong."""
        heads = seen.x.k.shape[1]
        wrong = torch.zeros(seen.x.k.shape[:2], device=seen.x.q.device)
        for name in names:
            wrong += (~seen.right[name]).flatten(2).sum(2).unflatten(1, (heads, -1)).sum(2)
        worst = wrong.flatten().argsort(descending=True, stable=True)[:_FEW]
        worst = worst[wrong.flatten()[worst] > 0].sort().values
        return Blocks(seen, shards, worst) if len(worst) else None

    def _own(self, name: str, computed: Tensor) -> Tensor:
        own = self.seen.actual.get(name)
        return computed if own is None else own[self._batch, self._heads]

    def _rows(self, rank: int) -> Tensor:
        return self.shards.index("m", rank).to(self._lse.device)

    def _keys(self, rank: int) -> Tensor:
        return self.shards.index("n", rank).to(self._lse.device)

    def owner(self, rank: int, step: int) -> int:
        return (rank - step) % self.ranks

    def at(self, name: str, rank: int) -> tuple[Tensor, ...]:
        """The indices of a rank's shard of a result: [X, G, m, ...] of it, of gradients of keys [X, n, ...]."""
        if name in KEYS:
            return self._batch, self._group, self._keys(rank)[None]
        return self._batch[..., None], self._heads[..., None], self._rows(rank)[None, None]

    def _block(self, rank: int, valid: Tensor, keys: int, values: int) -> Block:
        """What the rows of a rank give with the keys of one and the values of another.

        Args:
            valid: [X or 1, 1, m, n] which of them each row sees.
        """
        rows, x = self._rows(rank), (self._q, self._do, self._lse, self._own_lse, self._delta)
        q, do, lse, own, delta = (each[:, :, rows] for each in x)
        k, v = self._k[:, :, self._keys(keys)], self._v[:, :, self._keys(values)]
        scores = (self._scale * q @ k.mT).masked_fill(~valid, -torch.inf)
        of_forward, p = ((scores - _finite(each)[..., None]).exp() for each in (lse, own))
        ds = self._scale * p * (do @ v.mT - delta[..., None])
        found = {"LSE": of_forward.sum(-1), "O": of_forward @ v, "dQ": ds @ k}
        return found | {"dK": (ds.mT @ q).sum(1), "dV": (p.mT @ do).sum(1)}

    def seen_by(self, valid: Tensor) -> list[list[Block]]:
        """By rank and step, the block where rows see keys so: [X or 1, 1, M, N] of the whole."""
        found: list[list[Block]] = []
        for rank in range(self.ranks):
            of_rank = valid[:, :, self._rows(rank)]
            found.append([])
            for step in range(self.ranks):
                owner = self.owner(rank, step)
                found[rank].append(
                    self._block(rank, of_rank[..., self._keys(owner)], owner, owner)
                )
        return found

    def right(self) -> list[list[Block]]:
        return self.seen_by(self._valid)

    def results(self, blocks: Sequence[Sequence[Block]], names: Sequence[str]) -> Results:
        found: Results = {}
        for rank, own in enumerate(blocks):
            found |= self._of_rows(rank, own)
            # Of gradients of keys, what each rank adds to this one's.
            to_this = [own[(other - rank) % self.ranks] for other, own in enumerate(blocks)]
            for name in KEYS:
                found[name, rank] = _sum(to_this, name)
        return {key: value for key, value in found.items() if key[0] in names}

    def _of_rows(self, rank: int, blocks: Sequence[Block]) -> Results:
        total, o, dq = (_sum(blocks, name) for name in ("LSE", "O", "dQ"))
        lse = total.log() + _finite(self._lse[:, :, self._rows(rank)])
        o = o / total.masked_fill(total == 0, 1.0)[..., None]
        return {("LSE", rank): lse, ("O", rank): o, ("dQ", rank): dq}

    # --- what ranks may do otherwise

    def changes(self, right: Sequence[Sequence[Block]], results: Results) -> Iterator[RankChange]:
        """What may go wrong in one step, or in putting the steps together; `results` are those of the right blocks."""
        for rank in range(self.ranks):
            for step in range(self.ranks):
                owner = self.owner(rank, step)
                for kind, words, block in self._instead(rank, step, right[rank][step]):
                    blocks = [*right[rank][:step], block, *right[rank][step + 1 :]]
                    predicted = self._of_rows(rank, blocks)
                    for name in KEYS:
                        if (key := (name, owner)) in results:
                            predicted[key] = results[key] + block[name] - right[rank][step][name]
                    yield RankChange(kind, words, rank, step, predicted)
            yield from self._of_merging(rank, right[rank])

    def _instead(self, rank: int, step: int, right: Block) -> Iterator[tuple[str, str, Block]]:
        """The kind and words of what may stand in the place of a rank's block of one step, and itself."""
        owner, rows = self.owner(rank, step), self._rows(rank)
        at = self._keys(owner)
        valid = self._valid[:, :, rows][..., at]
        if bool(valid.any()):
            nothing = {name: torch.zeros_like(value) for name, value in right.items()}
            yield "missing-step", "the keys of {whose} are left out by {ranks}", nothing
            twice = {name: 2 * value for name, value in right.items()}
            yield "twice", "the keys of {whose} are counted twice by {ranks}", twice
        local = torch.arange(len(rows), device=at.device)[:, None]
        others = torch.arange(len(at), device=at.device)
        unmasked = "the keys of {whose} are all seen by {ranks}, as if no mask were there"
        by_place = "the keys of {whose} are masked by {ranks} by their places in the shard"
        ways = {unmasked: torch.ones_like(valid), by_place: (others <= local).expand_as(valid)}
        ways[f"{by_place}, the diagonal too"] = (others < local).expand_as(valid)
        for words, seen in ways.items():
            if not torch.equal(seen, valid):
                yield "mask", words, self._block(rank, seen, owner, owner)
        for other in range(self.ranks):
            if other == owner or len(self._keys(other)) != len(at):
                continue
            place = f"of step {(rank - other) % self.ranks}"
            used = f"{place} are used by {{ranks}} in place of those of {{whose}}"
            stale = {"keys and values": (other, other), "keys": (other, owner)}
            for name, of in {**stale, "values": (owner, other)}.items():
                yield "stale", f"the {name} {used}", self._block(rank, valid, *of)

    def _of_merging(self, rank: int, right: Sequence[Block]) -> Iterator[RankChange]:
        """The parts of the steps before one are not scaled to the new maximum, in one step or in all."""
        so_far = torch.stack([block["LSE"] for block in right]).cumsum(0)
        grown = (so_far[1:] / so_far[:-1]).nan_to_num(0.0, 0.0, 0.0)
        for steps in [*([step] for step in range(1, self.ranks)), list(range(1, self.ranks))]:
            blocks = [dict(block) for block in right]
            for step in steps:
                for block in blocks[:step]:
                    block["O"] = block["O"] * grown[step - 1][..., None]
            o = {("O", rank): self._of_rows(rank, blocks)["O", rank]}
            alone = steps[0] if len(steps) == 1 else None
            words = _UNSCALED + (", in every step" if alone is None else "")
            yield RankChange("rescale", words, rank, alone, o)


def _sum(blocks: Sequence[Block], name: str) -> Tensor:
    return torch.stack([block[name] for block in blocks]).sum(0)


def _finite(lse: Tensor) -> Tensor:
    return lse.masked_fill(lse == -torch.inf, 0.0)
