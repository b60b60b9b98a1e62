"""Ring attention over the ranks of a group: `gradprobe check examples/ring.py:ring --ranks 4 --causal`."""

import torch
import torch.distributed as dist


def exchange(tensors, rank, world_size, group):
    """Sends each tensor to the next rank, and returns what the one before sends."""
    found = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]
    # Ranks of the world: those of `group` may have other numbers there.
    after, before = (dist.get_global_rank(group, (rank + step) % world_size) for step in (1, -1))
    sent = [dist.P2POp(dist.isend, tensor.contiguous(), after, group) for tensor in tensors]
    received = [dist.P2POp(dist.irecv, tensor, before, group) for tensor in found]
    for request in dist.batch_isend_irecv(sent + received):
        request.wait()
    return found


def contiguous(rank, world_size, length):
    return torch.arange(length) + rank * length


def striped(rank, world_size, length):
    return torch.arange(length) * world_size + rank


def zigzag(rank, world_size, length):
    first, last = torch.arange(length).chunk(2)
    return torch.cat([first + rank * len(first), last + (2 * world_size - 2 - rank) * len(first)])


def ring(q, k, v, do, *, causal, scale, rank, world_size, group, positions=contiguous):
    """Each rank's shards of q, k, v and dO, [B, H, L, D]; its shards of O, LSE, dQ, dK and dV."""
    dtype, groups = q.dtype, q.shape[1] // k.shape[1]
    q, k, v, do = (tensor.float() for tensor in (q, k, v, do))
    rows = positions(rank, world_size, q.shape[2]).to(q.device)

    def scores(k, step):
        """[B, H, L, L] of the step in which the keys of rank - step are here."""
        keys = positions((rank - step) % world_size, world_size, k.shape[2]).to(q.device)
        s = scale * q @ k.repeat_interleave(groups, 1).mT
        return s.masked_fill(keys > rows[:, None], -torch.inf) if causal else s

    o, lse = torch.zeros_like(do), do.new_full(do.shape[:3], -torch.inf)
    for step in range(world_size):
        s = scores(k, step)
        new_lse = torch.logaddexp(lse, s.logsumexp(-1))
        # A row that has seen no key yet has nothing to scale.
        safe = new_lse.masked_fill(new_lse == -torch.inf, 0.0)
        p = (s - safe[..., None]).exp()
        o = o * (lse - safe).exp()[..., None] + p @ v.repeat_interleave(groups, 1)
        lse = new_lse
        k, v = exchange([k, v], rank, world_size, group)

    delta = (o * do).sum(-1)
    dq, dk, dv = (torch.zeros_like(tensor) for tensor in (q, k, v))
    for step in range(world_size):
        p = (scores(k, step) - lse[..., None]).exp()
        dp = do @ v.repeat_interleave(groups, 1).mT
        ds = p * (dp - delta[..., None])
        dq += scale * ds @ k.repeat_interleave(groups, 1)
        dk += scale * (ds.mT @ q).unflatten(1, (-1, groups)).sum(2)
        dv += (p.mT @ do).unflatten(1, (-1, groups)).sum(2)
        k, v, dk, dv = exchange([k, v, dk, dv], rank, world_size, group)
    return {"LSE": lse} | {
        name: tensor.to(dtype) for name, tensor in zip(("O", "dQ", "dK", "dV"), (o, dq, dk, dv), strict=True)
    }


def ring_zigzag(q, k, v, do, *, causal, scale, rank, world_size, group):
    return ring(**locals(), positions=zigzag)


def ring_striped(q, k, v, do, *, causal, scale, rank, world_size, group):
    return ring(**locals(), positions=striped)
