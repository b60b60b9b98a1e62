"""A backward over paged keys and values, and the adapter that pages them: `gradprobe check examples/paged.py`."""

import torch
import torch.nn.functional as F

PAGE = 16


def paged_backward(q, k_pages, v_pages, table, n_keys, grad, scale):
    """dQ, and dK and dV by pages [P, H, PAGE, D], for a table [B, pages of a sequence]; yours is a kernel."""
    k, v = (pages[table].transpose(1, 2).flatten(2, 3) for pages in (k_pages, v_pages))
    seen = torch.arange(k.shape[2], device=q.device) < n_keys
    p = (scale * q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1)
    dp = grad @ v.mT
    ds = scale * p * (dp - (p * dp).sum(-1, keepdim=True))
    dk, dv = (x.unflatten(2, (-1, PAGE)).transpose(1, 2).flatten(0, 1) for x in (ds.mT @ q, p.mT @ grad))
    place = table.flatten().argsort()
    return ds @ k, dk[place], dv[place]


def backward(q, k, v, do, *, scale):
    """[B, H, L, D] in; the keys and values go into pages in a drawn order, and their gradients come out of them."""
    n_batch, n_keys = k.shape[0], k.shape[2]
    n_pages = -(-n_keys // PAGE)
    table = torch.randperm(n_batch * n_pages, device=q.device).view(n_batch, n_pages)
    place = table.flatten().argsort()

    def paged(x):
        padded = F.pad(x, (0, 0, 0, n_pages * PAGE - n_keys))
        return padded.unflatten(2, (n_pages, PAGE)).transpose(1, 2).flatten(0, 1)[place].contiguous()

    def whole(pages):
        return pages[table].transpose(1, 2).flatten(2, 3)[:, :, :n_keys]

    dq, dk, dv = paged_backward(q, paged(k), paged(v), table, n_keys, do, scale)
    return {"dQ": dq, "dK": whole(dk), "dV": whole(dv)}
