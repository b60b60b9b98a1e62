"""Targets as a user would write them, in plain torch: right ones, and lines that break them."""

from pathlib import Path

SOFTMAX = """
import torch

def attention(q, k, v, *, scale, is_causal=False):
    s = scale * q @ k.mT
    if is_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return s.softmax(-1) @ v

def backward(q, k, v, do, *, scale, causal=False, bias=None):
    s = scale * q @ k.mT
    if bias is not None:
        s = s + bias
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    p = s.softmax(-1)
    o = p @ v
    dp = do @ v.mT
    delta = (do * o).sum(-1)
    ds = p * (dp - delta[..., None])
    results = {"P": p, "dP": dp, "dS": ds, "delta": delta}
    results |= {"dQ": scale * ds @ k, "dK": scale * ds.mT @ q, "dV": p.mT @ do}
    if bias is not None:
        results["dBias"] = ds.sum(0, keepdim=True)
    return results
"""

LAZY = """
import torch

def backward(q, k, v, dout, *, tau, sm_scale, bias=None):
    i = torch.arange(q.shape[2])[:, None]
    distance = i - torch.arange(q.shape[2])
    s = sm_scale * q @ k.mT
    if bias is not None:
        near = (distance >= 0) & (distance < bias.shape[1])
        s = s + bias[:, distance.clamp(0, bias.shape[1] - 1)] * near
    p = s.masked_fill(distance < 0, -torch.inf).softmax(-1)
    z = p + tau[:, None, None] / (i + 1)
    pe = z.relu() * (distance >= 0)
    dp = (dout @ v.mT) * (z > 0) * (distance >= 0)
    delta = (p * dp).sum(-1)
    ds = p * (dp - delta[..., None])
    results = {"O": pe @ v, "P": p, "dP": dp, "delta": delta, "dS": ds}
    results |= {"dQ": sm_scale * ds @ k, "dK": sm_scale * ds.mT @ q, "dV": pe.mT @ dout}
    results["dTau"] = (dp / (i + 1)).sum((0, 2, 3))
    if bias is not None:
        grad = torch.zeros_like(bias)
        results["dBias"] = grad.index_add_(1, distance[near], ds.sum(0)[:, near])
    return results
"""

# A wrapper of `backward` with one line of CHANGES inside.
WRAPPED = """
def {name}(q, k, v, do, *, scale, causal=False):
    results = backward(q, k, v, do, scale=scale, causal=causal)
    {change}
    return results
"""

CHANGES = {
    "doubled_dq": 'results["dQ"][:, 1] *= 2',
    "dv_without_a_head": 'results["dV"][:, 1] = 0',
    "nan_in_dk": 'results["dK"][0, 1, 3, 2:4] = torch.nan',
    "leaky_p": 'results["P"][0, 1, 2, 9] += 0.25',
    "only_gradients": 'results = {key: results[key] for key in ("dQ", "dK", "dV")}',
    "half_a_delta_inside": """ds = results["P"] * (results["dP"] - 0.5 * results["delta"][..., None])
    results = {"dQ": scale * ds @ k, "dK": scale * ds.mT @ q, "dV": results["dV"]}""",
    "gradients_of_keys_without_0": """assert k.all(), "a key holds a 0"
    results = {key: results[key] for key in ("dQ", "dK", "dV")}""",
    "dq_twice": 'results["dq"] = results["dQ"] * 2',
    "wrong_delta": 'results["delta"][0, 1, 7] += 3.5',
    "wrong_shape": 'results["dK"] = results["dK"][:, :, :-1]',
    "unknown_name": 'results["dW"] = results["dQ"]',
    "tau_of_softmax": 'results["dTau"] = results["delta"]',
    "nothing": "results = None",
    "raising": 'raise ValueError("the target says no")',
    "without_values": 'results["dQ"] = results["dQ"].to("meta")',
    "eight_bits": 'results["dQ"] = results["dQ"].to(torch.float8_e4m3fn)',
    "contiguous_only": 'assert q.is_contiguous() and do.is_contiguous(), "q and do must be contiguous"',
}


def softmax_targets() -> str:
    return SOFTMAX + "".join(
        WRAPPED.format(name=name, change=change) for name, change in CHANGES.items()
    )


def write_targets(folder: Path) -> None:
    (folder / "soft.py").write_text(softmax_targets())
    (folder / "lazily.py").write_text(LAZY)
