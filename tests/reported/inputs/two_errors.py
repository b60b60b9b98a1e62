"""P is off by a little in its first row, and by far more in the keys behind the tenth of later ones."""


def backward(q, k, v, do, scale):
    p, dp = (q @ k.mT * scale).softmax(-1), do @ v.mT
    p[:, :, 0] *= 1 + 2e-5
    p[:, :, 7:, 10:] *= 1.5
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    return {"P": p, "dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do}


def slightly(q, k, v, do, scale):
    p, dp = (q @ k.mT * scale).softmax(-1), do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    return {"dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do + 1e-4}
