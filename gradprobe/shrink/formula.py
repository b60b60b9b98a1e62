"""The formulas of a case as Python source: the forward, whose gradients autograd finds; no word of gradprobe in it."""

from __future__ import annotations

from collections.abc import Iterator

from ..cases.case import Case

_INTRO = '''
def expected(dtype):
    """Every intermediate by its formula, computed in a dtype; the gradients by autograd."""
    x = {name: one.to(dtype, copy=True) if one.is_floating_point() else one for name, one in VALUES.items()}
    leaves = {name: x[name].requires_grad_() for name in x if name in GRADIENTS and x[name].is_floating_point()}
    q, k, v, do = (x[name] for name in ("q", "k", "v", "do"))
'''
_GRADIENTS = {"q": "dQ", "k": "dK", "v": "dV", "bias": "dBias", "sinks": "dSink", "tau": "dTau"}


def formula(case: Case) -> str:
    """The source of `expected(dtype)`, which returns every intermediate of the case by name, and of what it needs.

    It reads VALUES, the contiguous values by name.
    """
    body = _lazy(case) if case.family == "lazy" else _softmax(case)
    lines = [*_positions(case), *_seen(case), *body, *_gradients(case)]
    return f"GRADIENTS = {_GRADIENTS!r}\n\n{_INTRO}" + "".join(f"    {line}\n" for line in lines)


def _positions(case: Case) -> Iterator[str]:
    yield f"i, j = torch.arange({case.seqlen_q})[:, None], torch.arange({case.seqlen_k})[None, :]"
    if case.cu_seqlens_q is not None:
        corner = "1:" if case.align == "bottom-right" else ":-1"
        yield 'ends_q, ends_k = x["cu_seqlens_q"].long(), x["cu_seqlens_k"].long()'
        yield "of_row, of_key = (torch.bucketize(at, ends[1:], right=True) for at, ends in ((i, ends_q), (j, ends_k)))"
        yield f"diagonal = i + (ends_k[{corner}] - ends_q[{corner}])[of_row]"
    else:
        shift = case.seqlen_k - case.seqlen_q if case.align == "bottom-right" else 0
        yield f"diagonal = i + {shift}" if shift else "diagonal = i"


def _seen(case: Case) -> Iterator[str]:
    """Which keys each row sees, [B or 1, H or 1, M, N]."""
    yield "seen = ((i >= 0) & (j >= 0))[None, None]"
    left, right = case.window or (-1, -1)
    if case.causal:
        yield "seen = seen & (j <= diagonal)"
    if left >= 0:
        yield f"seen = seen & (j >= diagonal - {left})"
    if right >= 0:
        yield f"seen = seen & (j <= diagonal + {right})"
    if case.seqlens is not None:
        yield 'live = x["seqlens"][:, None, None, None]'
        yield "seen = seen & (i < live) & (j < live)"
    if case.cu_seqlens_q is not None:
        yield "seen = seen & (of_row == of_key)"
    if case.mask is not None:
        yield 'seen = seen & x["mask"]'


def _softmax(case: Case) -> Iterator[str]:
    group = case.heads // case.kv_heads
    yield (
        f"keys, values = (one.repeat_interleave({group}, 1) for one in (k, v))" if group > 1 else "keys, values = k, v"
    )
    yield f"s = {case.scale!r} * (q @ keys.mT)"
    yield f"t = {case.softcap!r} * torch.tanh(s / {case.softcap!r})" if case.softcap is not None else "t = s"
    if case.bias:
        yield 't = t + x["bias"]'
    if case.alibi:
        yield 't = t - x["alibi"][:, None, None] * (diagonal - j).abs()'
    yield "t = t.masked_fill(~seen, torch.finfo(dtype).min / 4)"
    yield "lse = t.logsumexp(-1)"
    if case.sinks:
        yield 'lse = torch.logaddexp(lse, x["sinks"][:, None])'
    yield "p = (t - lse[..., None]).exp() * seen"
    if case.dropout:
        yield f'o = (p * x["keep"] / (1 - {case.dropout!r})) @ values'
    else:
        yield "o = p @ values"
    yield "delta = (do * o).sum(-1)"


def _lazy(case: Case) -> Iterator[str]:
    yield f"s = {case.scale!r} * (q @ k.mT)"
    if case.bias:
        yield f"near = (i - j >= 0) & (i - j < {case.bias_window})"
        yield f's = s + x["bias"][:, (i - j).clamp(0, {case.bias_window - 1})] * near'
    yield "t = s.masked_fill(~seen, torch.finfo(dtype).min / 4)"
    yield "lse = t.logsumexp(-1)"
    yield "p = (t - lse[..., None]).exp() * seen"
    yield 'o = ((p + x["tau"][:, None, None] / (i + 1)).relu() * seen) @ v'


def _gradients(case: Case) -> Iterator[str]:
    yield "wanted = [p, s, *leaves.values()]"
    yield "dp, ds, *found = torch.autograd.grad(o, wanted, do, allow_unused=True)"
    yield "dp = dp * seen"
    if case.family == "lazy":
        yield "delta = (p * dp).sum(-1)"
    yield 'results = {"LSE": lse, "P": p, "O": o, "dP": dp, "delta": delta, "dS": ds}'
    yield "results |= {GRADIENTS[name]: gradient for name, gradient in zip(leaves, found)}"
    # What nothing is said about: the LSE of a row that sees no key, and dP where none is seen.
    yield 'free = {"LSE": ~seen.any(-1).expand(lse.shape), "dP": ~seen.expand(dp.shape)}'
    yield "return {name: value.detach() for name, value in results.items() if value is not None}, free"
