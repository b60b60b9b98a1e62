"""Both forwards, row by row over lists of visible keys, and autograd behind them: nothing of reference/."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Inputs = dict[str, Any]  # the arguments of manual_attention_backward, by name

# The difference that rounding alone allows between two right float64 answers on `draw`'s inputs. These are at
# most 1 in size, with B*H*M <= 104 rows, N <= 13 keys, D, Dv <= 5, scale and |tau| <= 2. So |S| <= 11, |dP|
# and |delta| <= 5 and sum_j |dS_ij| <= 10; the longest sum, dBias of one number, has 104 * 13 = 1352 terms
# that add up to at most 104 * 10 = 1040 in size. Its terms have passed at most 248 roundings (8 of S, which
# exp multiplies by 2 * 11, and 72 more). Each of the two answers then errs by at most (1352 + 248) * 2**-53
# of 1040, in whatever order it was summed.
ROUNDING = 2 * (1352 + 248) * 1040 * 2.0**-53  # 3.7e-10

# What must be *off* is asked to be so by a million roundings.
OFF = 1e6 * ROUNDING  # 3.7e-4


def draw(*shape: int, seed: int) -> Tensor:
    """Float64 uniform on [-1, 1)."""
    return 2 * torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1


def softmax_inputs(m: int = 7, n: int = 7, d: int = 3, dv: int = 3, heads: int = 2, kv_heads: int = 2) -> Inputs:
    """q, k, v, do of two batches."""
    shapes = {
        "q": (2, heads, m, d),
        "k": (2, kv_heads, n, d),
        "v": (2, kv_heads, n, dv),
        "do": (2, heads, m, dv),
    }
    return {name: draw(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}


def lazy_inputs(
    n_ctx: int = 7, d: int = 3, window: int | None = 3, tau: tuple[float, ...] = (0.7, -0.8, 0.0)
) -> Inputs:
    """q, k, v, do, bias, tau of two batches, one head for each tau, with the family."""
    heads = len(tau)
    inputs = softmax_inputs(n_ctx, n_ctx, d, d, heads, heads)
    bias = None if window is None else draw(heads, window, seed=4)
    return inputs | {"family": "lazy", "bias": bias, "tau": torch.tensor(tau, dtype=torch.float64)}


def seen_keys(i: int, m: int, n: int, causal: bool, window: tuple[int, int], length: int | None) -> list[int]:
    """The keys that query row i sees: the last row's own key is the last one."""
    if length is not None and i >= length:
        return []
    back = [(i - m) - (j - n) for j in range(n)]  # how far key j lies behind row i, both counted from the end
    left, right = window
    keep = [j for j in range(n) if length is None or j < length]
    keep = [j for j in keep if not causal or back[j] >= 0]
    keep = [j for j in keep if left < 0 or back[j] <= left]
    return [j for j in keep if right < 0 or -back[j] <= right]


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    family: str = "softmax",
    causal: bool = False,
    scale: float | None = None,
    bias: Tensor | None = None,
    tau: Tensor | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    seqlens: Tensor | None = None,
) -> dict[str, Tensor]:
    """O, LSE, S (before softcap, bias and mask), P by row, and Z of the visible entries in one line."""
    (batch, heads, m, d), n = q.shape, k.shape[2]
    places = [(b, h, i) for b in range(batch) for h in range(heads) for i in range(m)]
    lengths = [None] * batch if seqlens is None else seqlens.tolist()
    seen = [seen_keys(i, m, n, causal or family == "lazy", window or (-1, -1), lengths[b]) for b, _, i in places]
    keys = [torch.tensor(js, dtype=torch.long) for js in seen]
    k, v = (t.repeat_interleave(heads // k.shape[1], 1) for t in (k, v))

    s = (1 / d**0.5 if scale is None else scale) * torch.einsum("bhmd,bhnd->bhmn", q, k)
    t = [row[js] for row, js in zip(s.flatten(0, 2).unbind(), keys, strict=True)]
    t = [row if softcap is None else softcap * torch.tanh(row / softcap) for row in t]
    if bias is not None and family == "softmax":
        by_row = bias.expand(batch, heads, m, n).flatten(0, 2).unbind()
        t = [row + by_row[r][keys[r]] for r, row in enumerate(t)]
    elif bias is not None:
        by_head = torch.nn.functional.pad(bias, (0, n)).unbind()
        t = [row + by_head[h][i - js] for row, js, (_, h, i) in zip(t, keys, places, strict=True)]
    lse = torch.stack([row.detach().exp().sum().log() for row in t])
    p = torch.stack([s.new_zeros(n).index_put((js,), row.softmax(0)) for row, js in zip(t, keys, strict=True)])

    weights = [row[js] for row, js in zip(p.unbind(), keys, strict=True)]
    if tau is not None:
        weights = [row + tau[h] / (i + 1) for row, (_, h, i) in zip(weights, places, strict=True)]
    z = torch.cat(weights).detach()
    weights = weights if tau is None else [row.relu() for row in weights]
    values = v.flatten(0, 1).unbind()
    o = torch.stack([row @ values[r // m][keys[r]] for r, row in enumerate(weights)])
    rows = (batch, heads, m)
    return {"O": o.unflatten(0, rows), "LSE": lse.view(rows), "S": s, "P": p, "Z": z}


def by_autograd(q: Tensor, k: Tensor, v: Tensor, do: Tensor, **options) -> dict[str, Tensor]:
    """What `manual_attention_backward` should return, by autograd: dP and dS are the gradients of P and S."""
    inputs = {"dQ": q, "dK": k, "dV": v, "dBias": options.get("bias"), "dTau": options.get("tau")}
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in inputs.items() if leaf is not None}
    differentiable = {"bias": leaves.get("dBias"), "tau": leaves.get("dTau")}
    result = forward(leaves["dQ"], leaves["dK"], leaves["dV"], **options | differentiable)
    variables = leaves | {"dS": result["S"], "dP": result["P"]}
    found = torch.autograd.grad((result["O"] * do).sum(), list(variables.values()), materialize_grads=True)
    grads = dict(zip(variables, found, strict=True))
    p, grads["dP"] = result["P"].view_as(result["S"]), grads["dP"].view_as(result["S"])
    values = {"O": result["O"], "LSE": result["LSE"], "P": p, "delta": (p * grads["dP"]).sum(-1)} | grads
    return {name: value.detach() for name, value in values.items()}


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = ROUNDING) -> None:
    """The same names, and each value the same to rounding; NaN is never the same."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        try:
            torch.testing.assert_close(actual[name], value, atol=tolerance, rtol=0)
        except AssertionError as wrong:
            raise AssertionError(f"{name}: {wrong}") from None
