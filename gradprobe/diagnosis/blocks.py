"""Blocks: some heads of a sharded problem, and what its ranks would give if one of them took other keys in one step.

In step s of a ring, rank r sees the keys of rank (r - s) mod n. The rows of a rank and the keys of another are a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..faults.hypothesis import Observed
from ..inputs.shards import Shards
from ..reference import Tile, evaluate

KEYS = ("dK", "dV")
"""The gradients of keys: sums over ranks."""
# Batches and key heads that are looked at: those with the most wrong elements.
_FEW = 8


@dataclass(frozen=True, eq=False)
class BlockFault:
    """What one rank does otherwise than it should in one step."""

    kind: str
    """For scripts: "missing-step"."""
    words: str
    """`the keys of {whose} are left out by {ranks}`."""
    step: int | None
    """None where it is no single one."""
    keys: Tensor
    """[N'] the keys that its rows meet, by their place in the whole; one may come twice."""
    values: Tensor
    """[N'] the values that stand beside them."""
    home: Tensor
    """[N'] where their gradients go."""
    valid: Tensor
    """[X or 1, 1, m, N'] which of them each row sees."""
    weight: Tensor | None = None
    """[X, G, m, N'] by which P is multiplied in O, and in nothing else; None for 1."""


class Blocks:
    """X key heads, each with the G query heads of its group, in float64."""

    def __init__(self, seen: Observed, shards: Shards, batch: Tensor, group: Tensor) -> None:
        """
        Args:
            batch: [X] of each key head.
            group: [X] which of its batch it is.
        """
        self.seen, self.shards, self.ranks = seen, shards, shards.ranks
        self._x, x, size = seen.x, seen.x, seen.x.q.shape[1] // seen.x.k.shape[1]
        self._batch, self._group = batch[:, None], group[:, None]
        self._heads = self._group * size + torch.arange(size, device=group.device)
        self._q, self._do = x.q[self._batch, self._heads], x.do[self._batch, self._heads]
        self._k, self._v = x.k[self._batch, self._group], x.v[self._batch, self._group]
        rows, of_heads = slice(0, x.q.shape[2]), [slice(of * size, (of + 1) * size) for of in group.tolist()]
        self._tiles = [Tile(of, heads, rows) for of, heads in zip(batch.tolist(), of_heads, strict=True)]
        self._valid = torch.stack([x.valid(tile)[:1] for tile in self._tiles])
        self._lse, o = self._found("LSE"), self._found("O")
        self._delta = (self._do * o).sum(-1)
        self.every = torch.arange(x.k.shape[2], device=group.device)

    @staticmethod
    def of(seen: Observed, shards: Shards, names: Sequence[str]) -> Blocks | None:
        """The key heads with the most wrong elements of some intermediates; None where none is wrong."""
        heads, wrong = seen.x.k.shape[1], torch.zeros(seen.x.k.shape[:2], device=seen.x.q.device)
        for name in names:
            wrong += (~seen.right[name]).flatten(2).sum(2).unflatten(1, (heads, -1)).sum(2)
        worst = wrong.flatten().argsort(descending=True, stable=True)[:_FEW]
        worst = worst[wrong.flatten()[worst] > 0].sort().values
        return Blocks(seen, shards, worst // heads, worst % heads) if len(worst) else None

    def _found(self, name: str) -> Tensor:
        """[X, G, M, ...] LSE or O as the target's backward finds it: its own where it exposes that."""
        if name in self.seen.actual:
            return self.seen.actual[name][self._batch, self._heads]
        return torch.stack([evaluate(self._x, tile)[name] for tile in self._tiles])

    def rows(self, rank: int) -> Tensor:
        return torch.tensor(self.shards.held["m"][rank], device=self.every.device)

    def keys(self, rank: int) -> Tensor:
        return torch.tensor(self.shards.held["n"][rank], device=self.every.device)

    def owner(self, rank: int, step: int) -> int:
        """Whose keys a rank sees in a step."""
        return (rank - step) % self.ranks

    def at(self, name: str, rank: int) -> tuple[Tensor, ...]:
        """The indices of a rank's shard of an intermediate: [X, G, m, ...] of it, of gradients of keys [X, n, ...]."""
        if name in KEYS:
            return self._batch, self._group, self.keys(rank)[None]
        return self._batch[..., None], self._heads[..., None], self.rows(rank)[None, None]

    # --- what ranks give

    def right(self, rank: int) -> BlockFault:
        """What a rank should do."""
        return BlockFault("", "", None, self.every, self.every, self.every, self._valid[:, :, self.rows(rank)])

    def given(self, names: Sequence[str], rank: int, change: BlockFault) -> dict[str, Tensor]:
        """What a rank gives of some results: its rows; of the gradients of keys what it adds to all of them."""
        found = self._forward(rank, change) if {"LSE", "O"} & {*names} else {}
        found |= self._backward(rank, change) if {*names} - {"LSE", "O"} else {}
        return {name: found[name] for name in names}

    def _forward(self, rank: int, change: BlockFault) -> dict[str, Tensor]:
        """LSE [X, G, m] and O [X, G, m, E] of a rank's rows."""
        scores = self._scores(rank, change)
        lse = scores.logsumexp(-1)
        p = _p(scores, lse)
        return {"LSE": lse, "O": (p if change.weight is None else p * change.weight) @ self._v[:, :, change.values]}

    def _backward(self, rank: int, change: BlockFault) -> dict[str, Tensor]:
        """dQ [X, G, m, D] of a rank's rows, and what they add to dK [X, N, D] and dV [X, N, E]."""
        rows, scale, found = self.rows(rank), self._x.scale, dict[str, Tensor]()
        q, do, lse, delta = (each[:, :, rows] for each in (self._q, self._do, self._lse, self._delta))
        p = _p(self._scores(rank, change), lse)
        ds = scale * p * (do @ self._v[:, :, change.values].mT - delta[..., None])
        for name, whole, added in (("dK", self._k, ds.mT @ q), ("dV", self._v, p.mT @ do)):
            found[name] = torch.zeros_like(whole[:, 0]).index_add(1, change.home, added.sum(1))
        return {"dQ": ds @ self._k[:, :, change.keys], **found}

    def _scores(self, rank: int, change: BlockFault) -> Tensor:
        scores = self._x.scale * self._q[:, :, self.rows(rank)] @ self._k[:, :, change.keys].mT
        return scores.masked_fill(~change.valid, -torch.inf)

    # --- what ranks may do otherwise

    def changes(self, rank: int) -> Iterator[BlockFault]:
        """All that is known of what goes wrong in one step, or in putting the steps together."""
        for step in range(self.ranks):
            yield from self._of_mask(rank, step)
            yield from self._of_buffers(rank, step)
        yield from self._of_merging(rank)

    def _of_mask(self, rank: int, step: int) -> Iterator[BlockFault]:
        at, right = self.keys(self.owner(rank, step)), self.right(rank)
        local = torch.arange(len(self.rows(rank)), device=at.device)[:, None]
        others = torch.arange(len(at), device=at.device)[None]
        part, local_mask = (
            right.valid[..., at],
            "the keys of {whose} are masked by {ranks} by their places in the shard",
        )
        ways = {
            ("missing-step", "the keys of {whose} are left out by {ranks}"): torch.zeros_like(part),
            ("mask", "the keys of {whose} are all seen by {ranks}, as if no mask were there"): torch.ones_like(part),
            ("mask", local_mask): others <= local,
            ("mask", f"{local_mask}, the diagonal too"): others < local,
        }
        for (kind, words), seen in ways.items():
            valid = right.valid.clone()
            valid[..., at] = seen
            if not torch.equal(valid, right.valid):
                yield BlockFault(kind, words, step, right.keys, right.values, right.home, valid)
        if bool(part.any()):
            twice, words = torch.cat([self.every, at]), "the keys of {whose} are counted twice by {ranks}"
            yield BlockFault("twice", words, step, twice, twice, twice, torch.cat([right.valid, part], -1))

    def _of_buffers(self, rank: int, step: int) -> Iterator[BlockFault]:
        owner, valid = self.owner(rank, step), self.right(rank).valid
        at = self.keys(owner)
        for other in (one for one in range(self.ranks) if one != owner and len(self.keys(one)) == len(at)):
            instead = self.every.clone()
            instead[at] = self.keys(other)
            held = {
                "keys and values": (instead, instead),
                "keys": (instead, self.every),
                "values": (self.every, instead),
            }
            for name, (keys, values) in held.items():
                before = (rank - other) % self.ranks
                words = f"the {name} of step {before} are used by {{ranks}} in place of those of {{whose}}"
                yield BlockFault("stale", words, step, keys, values, self.every, valid)

    def _of_merging(self, rank: int) -> Iterator[BlockFault]:
        """The parts of the steps before one are not scaled to the new maximum, in one step or in all."""
        right = self.right(rank)
        scores = self._scores(rank, right)
        order = [self.keys(self.owner(rank, step)) for step in range(self.ranks)]
        so_far = torch.stack([scores[..., at].logsumexp(-1) for at in order]).logcumsumexp(0)
        missing = (so_far[1:] - so_far[:-1]).nan_to_num(0.0, 0.0, 0.0).exp()
        for steps in [*([step] for step in range(1, self.ranks)), list(range(1, self.ranks))]:
            weight = torch.ones_like(scores)
            for step in steps:
                weight[..., torch.cat(order[:step])] *= missing[step - 1][..., None]
            words = "what came before is added to O by {ranks} without being scaled to the new LSE"
            words += "" if len(steps) == 1 else ", in every step"
            at_fault = steps[0] if len(steps) == 1 else None
            yield BlockFault("rescale", words, at_fault, right.keys, right.values, right.home, right.valid, weight)


def _p(scores: Tensor, lse: Tensor) -> Tensor:
    return (scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp()
