"""A target of plain torch whose delta is wrong in every third head, behind row 40: the page of 128 heads is of it."""


def backward(q, k, v, do, *, scale):
    p = (scale * q @ k.mT).softmax(-1)
    dp = do @ v.mT
    delta = (do * (p @ v)).sum(-1)
    delta[:, ::3, 40:] *= 1.5
    ds = p * (dp - delta[..., None])
    results = {"P": p, "dP": dp, "dS": ds, "delta": delta}
    return results | {"dQ": scale * ds @ k, "dK": scale * ds.mT @ q, "dV": p.mT @ do}
