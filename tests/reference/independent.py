"""Both forwards, row by row over lists of visible keys, and autograd behind them: nothing of reference/."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(shape, dtype=torch.float64, generator=generator) - 1


def softmax_inputs(
    m: int = 7, n: int = 7, d: int = 3, dv: int = 3, heads: int = 2, kv_heads: int = 2
) -> Inputs:
    q, k = (2, heads, m, d), (2, kv_heads, n, d)
    shapes = {"q": q, "k": k, "v": (*k[:3], dv), "do": (*q[:3], dv)}
    return {name: draw(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}


def lazy_inputs(
    n_ctx: int = 7, d: int = 3, window: int | None = 3, tau: tuple[float, ...] = (0.7, -0.8, 0.0)
) -> Inputs:
    """q, k, v, do, bias, tau of two batches, one head for each tau, with the family."""
    inputs = softmax_inputs(n_ctx, n_ctx, d, d, len(tau), len(tau))
    bias = None if window is None else draw(len(tau), window, seed=4)
    return inputs | {
        "family": "lazy",
        "bias": bias,
        "tau": torch.tensor(tau, dtype=torch.double),
    }


def sequence_of(
    i: int, m: int, n: int, starts: Sequence[tuple[int, int]] | None
) -> tuple[range, range]:
    """The rows and the keys of the packed sequence that row i belongs to: all of them where nothing is packed."""
    for (row, key), (next_row, next_key) in itertools.pairwise(starts or [(0, 0), (m, n)]):
        if i < next_row:
            return range(row, next_row), range(key, next_key)
    raise ValueError(f"no sequence holds row {i}")


def seen_keys(
    i: int, rows: range, keys: range, causal: bool, window: tuple[int, int], align: str, length: int | None
) -> dict[int, int]:  # fmt: skip
    """The keys that query row i sees, and how far each lies behind the row's own one, counted from the end of the rows
    and keys ("bottom-right": the last row's own key is the last one) or from their beginning ("top-left")."""
    if length is not None and i >= length:
        return {}
    here, there = (rows.start, keys.start) if align == "top-left" else (rows.stop, keys.stop)
    behind = {j: (i - here) - (j - there) for j in keys if length is None or j < length}
    left, right = window
    behind = {j: back for j, back in behind.items() if not causal or back >= 0}
    behind = {j: back for j, back in behind.items() if left < 0 or back <= left}
    return {j: back for j, back in behind.items() if right < 0 or -back <= right}


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, family: str = "softmax", causal: bool = False, scale: float | None = None,
    bias: Tensor | None = None, tau: Tensor | None = None, window: tuple[int, int] | None = None,
    softcap: float | None = None, seqlens: Tensor | None = None, align: str = "bottom-right",
    alibi: Tensor | None = None, mask: Tensor | None = None, sinks: Tensor | None = None, dropout: float = 0.0,
    keep: Tensor | None = None, cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """O, LSE, S (before softcap, bias and mask), P by row, and Z of the visible entries in one line.

    Args:
        bias: softmax: anything that broadcasts to [B, H, M, N].
        mask: bool, broadcasts to [B, H, M, N]; keep: bool [B, H, M, N]. True is attended, and kept.
        alibi, sinks: [H].
    """
    (batch, heads, m, d), n = q.shape, k.shape[2]
    places = [(b, h, i) for b in range(batch) for h in range(heads) for i in range(m)]
    lengths = [None] * batch if seqlens is None else seqlens.tolist()
    packed = cu_seqlens_q is not None and cu_seqlens_k is not None
    starts = (
        list(zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True)) if packed else None
    )
    one_way = causal or family == "lazy"
    full, one_way = (batch, heads, m, n), causal or family == "lazy"
    k, v = (t.repeat_interleave(heads // k.shape[1], 1) for t in (k, v))
    s = (1 / d**0.5 if scale is None else scale) * torch.einsum("bhmd,bhnd->bhmn", q, k)
    seen, lses, shares = list[Tensor](), list[Tensor](), list[Tensor]()
    for (b, h, i), scores in zip(places, s.flatten(0, 2).unbind(), strict=True):
        of = sequence_of(i, m, n, starts)
        behind = seen_keys(i, *of, one_way, window or (-1, -1), align, lengths[b])
        if mask is not None:
            allowed = mask.expand(full)[b, h, i]
            behind = {j: back for j, back in behind.items() if allowed[j]}
        js = torch.tensor(list(behind), dtype=torch.long)
        row = scores[js]
        row = row if softcap is None else softcap * torch.tanh(row / softcap)
        if bias is not None and family == "softmax":
            row = row + bias.expand(full)[b, h, i][js]
        elif bias is not None:
            row = row + torch.nn.functional.pad(bias, (0, n))[h][i - js]
        if alibi is not None:
            row = row - alibi[h] * torch.tensor(list(behind.values()), dtype=s.dtype).abs()
        if sinks is not None:
            row = torch.cat([row, sinks[h : h + 1]])
        seen.append(js)
        lses.append(row.detach().exp().sum().log())
        share = row.softmax(0)[: len(js)]
        shares.append(s.new_zeros(n).index_put((js,), share))
    p, o, z = torch.stack(shares), list[Tensor](), list[Tensor]()
    for (b, h, i), js, share in zip(places, seen, p.unbind(), strict=True):
        weight = share[js] if tau is None else share[js] + tau[h] / (i + 1)
        z.append(weight.detach())
        weight = weight if tau is None else weight.relu()
        if keep is not None:
            weight = weight * keep[b, h, i][js] / (1 - dropout)
        o.append(weight @ v[b, h][js])
    rows = (batch, heads, m)
    o, lse = (torch.stack(each).unflatten(0, rows) for each in (o, lses))
    return {"O": o, "LSE": lse, "S": s, "P": p, "Z": torch.cat(z)}


def by_autograd(q: Tensor, k: Tensor, v: Tensor, do: Tensor, **options) -> dict[str, Tensor]:
    """What `manual_attention_backward` should return, by autograd: dP and dS are the gradients of P and S."""
    others = {"dBias": "bias", "dTau": "tau", "dSink": "sinks", "dAlibi": "alibi"}
    inputs = {"dQ": q, "dK": k, "dV": v} | {
        name: options.get(option) for name, option in others.items()
    }
    leaves = {
        name: leaf.clone().requires_grad_() for name, leaf in inputs.items() if leaf is not None
    }
    differentiable = {option: leaves.get(name) for name, option in others.items()}
    result = forward(leaves["dQ"], leaves["dK"], leaves["dV"], **options | differentiable)
    variables = leaves | {"dS": result["S"], "dP": result["P"]}
    found = torch.autograd.grad(
        (result["O"] * do).sum(), list(variables.values()), materialize_grads=True
    )
    grads = dict(zip(variables, found, strict=True))
    p, grads["dP"] = result["P"].view_as(result["S"]), grads["dP"].view_as(result["S"])
    values = {
        "O": result["O"], "LSE": result["LSE"], "P": p, "delta": (p * grads["dP"]).sum(-1),
    } | grads  # fmt: skip
    return {name: value.detach() for name, value in values.items()}


def assert_same(
    actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = ROUNDING
) -> None:
    """The same names, and each value the same to rounding; NaN is never the same."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        try:
            torch.testing.assert_close(actual[name], value, atol=tolerance, rtol=0)
        except AssertionError as wrong:
            raise AssertionError(f"{name}: {wrong}") from None
