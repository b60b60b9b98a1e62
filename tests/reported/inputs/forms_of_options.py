"""Right attention whose window, mask or results have other forms than the tool's own."""

import math

import torch
import torch.nn.functional as F


def gradients(p, q, k, v, do):
    scale = 1 / math.sqrt(q.shape[-1])
    dp = do @ v.mT
    ds = scale * p * (dp - (p * dp).sum(-1, keepdim=True))
    return ds @ k, ds.mT @ q, p.mT @ do


def scores(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def near(q, k, window):
    rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    distance = rows - keys + k.shape[2] - q.shape[2]
    return (distance >= 0) & (distance <= window)


def window_unannotated(q, k, v, do, window):
    p = scores(q, k).masked_fill(~near(q, k, window), -torch.inf).softmax(-1)
    return gradients(p, q, k, v, do)


def window_annotated(q, k, v, do, window: int):
    assert type(window) is int
    return window_unannotated(q, k, v, do, window)


def window_is_one_key_short(q, k, v, do, window: int):
    return window_unannotated(q, k, v, do, window - 1)


def torch_s_parameters(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )


def mask_of_either_kind(q, k, v, do, attn_mask):
    s = scores(q, k)
    s = s.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else s + attn_mask
    return gradients(s.softmax(-1), q, k, v, do)


def mask_that_is_added(q, k, v, attention_mask=None):
    return (scores(q, k) + (0 if attention_mask is None else attention_mask)).softmax(-1) @ v


class Array:
    """A tensor of another library."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **words):
        return self.tensor.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def plain(q, k, v, do):
    return gradients(scores(q, k).softmax(-1), q, k, v, do)


def arrays_of_numpy(q, k, v, do):
    dq, dk, dv = (found.numpy() for found in plain(q, k, v, do))
    return {"dQ": dq, "dK": dk, "dV": dv}


def arrays_of_another_library(q, k, v, do):
    return tuple(map(Array, plain(q, k, v, do)))


def lists(q, k, v, do):
    return {"dQ": plain(q, k, v, do)[0].tolist()}
