"""Blocks: one head of a sharded problem, and what its ranks would give if one of them took other keys in one step.

In step s of a ring, rank r sees the keys of rank (r - s) mod n. The rows of a rank and the keys of another are a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..inputs.shards import Shards
from ..reference import Attention, Tile


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
    """[m, N'] which of them each row sees."""
    weight: Tensor | None = None
    """[G, m, N'] by which P is multiplied in O, and in nothing else; None for 1."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """One key head with the query heads of its group, in float64."""

    shards: Shards
    q: Tensor
    """[G, M, D]."""
    k: Tensor
    """[N, D]."""
    v: Tensor
    """[N, E]."""
    do: Tensor
    """[G, M, E]."""
    valid: Tensor
    """[M, N]."""
    scale: float

    @staticmethod
    def of(x: Attention, shards: Shards, batch: int, group: int) -> Blocks:
        """Those of one batch and key head."""
        size = x.q.shape[1] // x.k.shape[1]
        heads = slice(group * size, (group + 1) * size)
        valid = x.valid(Tile(batch, heads, slice(0, x.q.shape[2])))[0]
        own = x.q[batch, heads], x.k[batch, group], x.v[batch, group], x.do[batch, heads]
        return Blocks(shards, *own, valid, x.scale)

    @property
    def ranks(self) -> int:
        return self.shards.ranks

    def rows(self, rank: int) -> Tensor:
        return torch.tensor(self.shards.held["m"][rank], device=self.q.device)

    def keys(self, rank: int) -> Tensor:
        return torch.tensor(self.shards.held["n"][rank], device=self.q.device)

    def owner(self, rank: int, step: int) -> int:
        """Whose keys a rank sees in a step."""
        return (rank - step) % self.ranks

    @cached_property
    def every(self) -> Tensor:
        return torch.arange(self.k.shape[0], device=self.q.device)

    def right(self, rank: int) -> BlockFault:
        """What a rank should do."""
        return BlockFault("", "", None, self.every, self.every, self.every, self.valid[self.rows(rank)])

    def forward(self, rank: int, change: BlockFault) -> dict[str, Tensor]:
        """LSE [G, m] and O [G, m, E] of a rank's rows."""
        scores = self._scores(rank, change)
        lse = scores.logsumexp(-1)
        p = self._p(scores, lse)
        return {"LSE": lse, "O": (p if change.weight is None else p * change.weight) @ self.v[change.values]}

    def backward(self, rank: int, change: BlockFault, lse: Tensor, delta: Tensor) -> dict[str, Tensor]:
        """dQ [G, m, D] of a rank's rows, and what they add to dK [N, D] and dV [N, E].

        Args:
            lse, delta: [G, m] of those rows.
        """
        rows, k = self.rows(rank), self.k[change.keys]
        p = self._p(self._scores(rank, change), lse)
        ds = p * (self.do[:, rows] @ self.v[change.values].mT - delta[..., None])
        added = {"dK": self.scale * (ds.mT @ self.q[:, rows]).sum(0), "dV": (p.mT @ self.do[:, rows]).sum(0)}
        whole = {"dK": torch.zeros_like(self.k), "dV": torch.zeros_like(self.v)}
        return {"dQ": self.scale * ds @ k} | {
            name: whole[name].index_add(0, change.home, value) for name, value in added.items()
        }

    def _scores(self, rank: int, change: BlockFault) -> Tensor:
        s = self.scale * self.q[:, self.rows(rank)] @ self.k[change.keys].mT
        return s.masked_fill(~change.valid, -torch.inf)

    @staticmethod
    def _p(scores: Tensor, lse: Tensor) -> Tensor:
        return (scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp()

    def changes(self, rank: int) -> Iterator[BlockFault]:
        """All that is known of what goes wrong in one step, or in putting the steps together."""
        for step in range(self.ranks):
            yield from self.of_step(rank, step)
        yield from self._of_merging(rank)

    def of_step(self, rank: int, step: int) -> Iterator[BlockFault]:
        """What of it is about the keys of one step."""
        yield from self._of_mask(rank, step)
        yield from self._of_buffers(rank, step)

    def _of_mask(self, rank: int, step: int) -> Iterator[BlockFault]:
        owner, right = self.owner(rank, step), self.right(rank)
        at = self.keys(owner)
        local = torch.arange(len(self.rows(rank)), device=at.device)[:, None]
        others = torch.arange(len(at), device=at.device)[None]
        part, local_mask = right.valid[:, at], "the keys of {whose} are masked by {ranks} by their places in the shard"
        ways = {
            ("missing-step", "the keys of {whose} are left out by {ranks}"): torch.zeros_like(part),
            ("mask", "the keys of {whose} are all seen by {ranks}, as if no mask were there"): torch.ones_like(part),
            ("mask", local_mask): others <= local,
            ("mask", f"{local_mask}, the diagonal too"): others < local,
        }
        for (kind, words), seen in ways.items():
            valid = right.valid.clone()
            valid[:, at] = seen
            if not torch.equal(valid, right.valid):
                yield BlockFault(kind, words, step, right.keys, right.values, right.home, valid)
        if bool(right.valid[:, at].any()):
            twice = torch.cat([self.every, at])
            valid = torch.cat([right.valid, right.valid[:, at]], 1)
            yield BlockFault(
                "twice", "the keys of {whose} are counted twice by {ranks}", step, twice, twice, twice, valid
            )

    def _of_buffers(self, rank: int, step: int) -> Iterator[BlockFault]:
        owner, right = self.owner(rank, step), self.right(rank)
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
                yield BlockFault("stale", words, step, keys, values, self.every, right.valid)

    def _of_merging(self, rank: int) -> Iterator[BlockFault]:
        """The parts of the steps before one are not scaled to the new maximum, in one step or in all."""
        right = self.right(rank)
        scores = self._scores(rank, right)
        order = [self.keys(self.owner(rank, step)) for step in range(self.ranks)]
        parts = torch.stack([scores[..., at].logsumexp(-1) for at in order])
        so_far = parts.logcumsumexp(0)
        missing = (so_far[1:] - so_far[:-1]).nan_to_num(0.0, 0.0, 0.0).exp()
        for steps in [*([step] for step in range(1, self.ranks)), list(range(1, self.ranks))]:
            weight = torch.ones_like(scores)
            for step in steps:
                for at in order[:step]:
                    weight[..., at] *= missing[step - 1][..., None]
            words = "what came before is added to O by {ranks} without being scaled to the new LSE"
            words += "" if len(steps) == 1 else ", in every step"
            at_fault = steps[0] if len(steps) == 1 else None
            yield BlockFault("rescale", words, at_fault, right.keys, right.values, right.home, right.valid, weight)

    def contributions(self, lse: Tensor, delta: Tensor) -> Mapping[str, Tensor]:
        """What each rank's rows add to dK and dV, [ranks, N, ...]."""
        found = [self.backward(rank, self.right(rank), *self.of_rows(rank, lse, delta)) for rank in range(self.ranks)]
        return {name: torch.stack([one[name] for one in found]) for name in ("dK", "dV")}

    def of_rows(self, rank: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The parts of [G, M] tensors that belong to a rank's rows."""
        rows = self.rows(rank)
        return tuple(tensor[:, rows] for tensor in tensors)
