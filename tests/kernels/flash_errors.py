"""How far rounding alone may take a right softmax kernel from float64, element by element.

Every step of forward and backward is a sum. In float32 it errs by at most n + 16 roundings, 2^-24 each, of the sum of
its terms' absolute values (n additions, and some for a product, quotient, exp, log or softcap), plus what its operands'
errors make of it to first order. Both are added up below, step by step. With 16 bits, P and dS are rounded once more
for the second dots, and O, dQ, dK and dV when they are stored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

UNIT = 2.0**-24
# Below this float32 numbers are subnormal, and may be flushed to 0.
TINY = 2.0**-126
# A rounding to nearest, of what is rounded and, among subnormal numbers, at least.
NARROW = {
    torch.float32: (0.0, 0.0),
    torch.float16: (2.0**-11, 2.0**-25),
    torch.bfloat16: (2.0**-8, 2.0**-134),
}


def allowed(tensors: dict[str, Any], expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The error allowed to each element of a kernel's results.

    Args:
        tensors: the kernel's arguments by name, options among them; scale is one of them.
        expected: the results in float64.
    """
    q, k, v, do = (tensors[name].double().abs() for name in ("q", "k", "v", "do"))
    groups = (k.shape[1], q.shape[1] // k.shape[1])
    k, v = (t.repeat_interleave(groups[1], 1) for t in (k, v))
    scale = abs(tensors["scale"])
    longest = max(q.shape[3], v.shape[3], k.shape[2], q.shape[2] * groups[1])
    each = (longest + 16) * UNIT
    unit, least = NARROW[tensors["q"].dtype]
    p, size = (
        expected["P"],
        {name: value.abs().nan_to_num(posinf=0.0) for name, value in expected.items()},
    )
    seen = p > 0

    s = each * scale * (q @ k.mT)
    t = s + each * _size_of_added(tensors, q.shape[2] + k.shape[2])
    lse = torch.where(seen, t, 0.0).amax(-1) + each * (1 + _of_sinks(tensors, q) + size["LSE"])
    p_error = p * (t + lse[..., None] + each) + TINY * seen
    narrow_p = p_error + (each + unit) * p + least * seen
    o = narrow_p @ v + unit * size["O"] + least
    delta = (do * (o + each * size["O"])).sum(-1)

    dp = each * (do @ v.mT) * seen
    centred = (expected["dP"] - expected["delta"][..., None]).abs()
    dt = p_error * centred + p * (
        dp + delta[..., None] + each * (size["dP"] + size["delta"][..., None])
    )
    # 1 - tanh(S / c)^2 changes by less than 0.77 / c with S.
    ds = (
        dt
        if tensors.get("softcap") is None
        else dt + p * centred * (0.77 / tensors["softcap"] * s + each)
    )
    narrow_ds = ds + (each + unit) * size["dS"] + least * seen
    results = {
        "dQ": scale * (narrow_ds @ k),
        "dK": scale * (narrow_ds.mT @ q).unflatten(1, groups).sum(2),
        "dV": (narrow_p.mT @ do).unflatten(1, groups).sum(2),
    }
    results = {name: error + (each + unit) * size[name] + least for name, error in results.items()}
    results |= {"LSE": lse, "P": p_error, "O": o, "dP": dp, "delta": delta, "dS": ds}
    if "dBias" in expected:  # one number may be a sum of everything
        shape = expected["dBias"].shape
        error = dt + p.numel() * UNIT * p * centred
        results["dBias"] = error.sum_to_size((1,) * (4 - len(shape)) + shape).view(shape)
    if "dSink" in expected:
        share = (tensors["sinks"].double()[:, None] - expected["LSE"]).exp()
        relative = lse + each * (1 + _of_sinks(tensors, q) + p.shape[0]) + p.shape[2] * UNIT
        results["dSink"] = (share * (size["delta"] * relative + delta) + TINY * size["delta"]).sum(
            (0, 2)
        )
    return {name: error + TINY for name, error in results.items()}


def _size_of_added(tensors: dict[str, Any], furthest: int) -> Tensor | float:
    """The absolute values of what is added to the scores: no key is further from a diagonal than `furthest`."""
    added: Tensor | float = 0.0
    if tensors.get("bias") is not None:
        added = added + tensors["bias"].double().abs()
    if tensors.get("alibi") is not None:
        added = added + furthest * tensors["alibi"].double().abs()[:, None, None]
    return added


def _of_sinks(tensors: dict[str, Any], q: Tensor) -> Tensor:
    """[H, 1]: the absolute values of the sinks."""
    sinks = tensors.get("sinks")
    return torch.zeros(q.shape[1], 1) if sinks is None else sinks.double().abs()[:, None]
