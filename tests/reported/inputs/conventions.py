"""Backwards that export an intermediate in units of their own; those that begin with `misused` also use it so."""

import math


def _values(q, k, v, do):
    scale = q.shape[-1] ** -0.5
    s = q @ k.mT * scale
    lse = s.logsumexp(-1)
    p = (s - lse[..., None]).exp()
    return scale, s, lse, p, do @ v.mT


def _gradients(q, k, do, scale, p, ds):
    return {"dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do}


def _right(q, k, v, do):
    scale, s, lse, p, dp = _values(q, k, v, do)
    delta = (p * dp).sum(-1)
    ds = p * (dp - delta[..., None])
    held = {"s": s, "scale": scale, "LSE": lse, "P": p, "dP": dp, "delta": delta, "dS": ds}
    return held, _gradients(q, k, do, scale, p, ds)


def negative_delta(q, k, v, do):
    held, gradients = _right(q, k, v, do)
    return gradients | {"delta": -held["delta"]}


def negative_delta_and_doubled_dv(q, k, v, do):
    gradients = negative_delta(q, k, v, do)
    return gradients | {"dV": 2 * gradients["dV"]}


def scaled_delta(q, k, v, do):
    held, gradients = _right(q, k, v, do)
    return gradients | {"delta": held["delta"] * held["scale"]}


def scaled_ds(q, k, v, do):
    held, gradients = _right(q, k, v, do)
    return gradients | {"dS": held["dS"] * held["scale"]}


def transposed_p(q, k, v, do):
    held, gradients = _right(q, k, v, do)
    return gradients | {"P": held["P"].mT.contiguous()}


def undivided_p(q, k, v, do):
    held, gradients = _right(q, k, v, do)
    return gradients | {"P": (held["s"] - held["s"].amax(-1, keepdim=True)).exp()}


def base_2(q, k, v, do):
    held, gradients = _right(q, k, v, do)
    return gradients | {"LSE": held["LSE"] / math.log(2)}


def less_the_maximum(q, k, v, do):
    held, gradients = _right(q, k, v, do)
    return gradients | {"LSE": held["LSE"] - held["s"].amax(-1)}


def squared_delta(q, k, v, do):
    """No simple relation."""
    held, gradients = _right(q, k, v, do)
    return gradients | {"delta": held["delta"] ** 2}


def misused_delta(q, k, v, do):
    scale, _, _, p, dp = _values(q, k, v, do)
    delta = -(p * dp).sum(-1)
    ds = p * (dp - delta[..., None])
    return _gradients(q, k, do, scale, p, ds) | {"delta": delta}


def misused_ds(q, k, v, do):
    held, _ = _right(q, k, v, do)
    ds = held["dS"] * held["scale"]
    return _gradients(q, k, do, held["scale"], held["P"], ds) | {"dS": ds}


def delta_with_its_axis(q, k, v, do):
    held, gradients = _right(q, k, v, do)
    return gradients | {"delta": held["delta"][..., None]}
