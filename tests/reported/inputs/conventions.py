"""Backwards that export an intermediate in units of their own; those that begin with `misused` also use it so."""

import math


def _backward(q, k, v, do, of_delta=1, of_ds=1):
    scale = q.shape[-1] ** -0.5
    s = q @ k.mT * scale
    lse = s.logsumexp(-1)
    p, dp = (s - lse[..., None]).exp(), do @ v.mT
    delta = of_delta * (p * dp).sum(-1)
    ds = p * (dp - delta[..., None]) * (scale if of_ds == "scaled" else of_ds)
    held = {"scale": scale, "LSE": lse, "P": p, "dP": dp, "delta": delta, "dS": ds}
    return held, {"dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do}


def _exporting(name, export, **misused):
    def backward(q, k, v, do):
        held, gradients = _backward(q, k, v, do, **misused)
        return gradients | {name: export(held)}

    return backward


negative_delta = _exporting("delta", lambda held: -held["delta"])
scaled_delta = _exporting("delta", lambda held: held["delta"] * held["scale"])
scaled_ds = _exporting("dS", lambda held: held["dS"] * held["scale"])
transposed_p = _exporting("P", lambda held: held["P"].mT.contiguous())
base_2 = _exporting("LSE", lambda held: held["LSE"] / math.log(2))
squared_delta = _exporting("delta", lambda held: held["delta"] ** 2)  # no simple relation
misused_delta = _exporting("delta", lambda held: held["delta"], of_delta=-1)
misused_ds = _exporting("dS", lambda held: held["dS"], of_ds="scaled")


def negative_delta_and_doubled_dv(q, k, v, do):
    gradients = negative_delta(q, k, v, do)
    return gradients | {"dV": 2 * gradients["dV"]}
