"""The formulas of a case as Python source: the forward, whose gradients autograd finds; no word of gradprobe in it."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...inputs.guard_bands import MAPPED
from ...model.case import Case
from ...model.intermediates import GRADIENT_OF

if TYPE_CHECKING:
    from torch import Tensor

_INTRO = '''
def expected(dtype):
    """Every intermediate by its formula, computed in a dtype; the gradients by autograd."""
    x = {name: one.to(dtype, copy=True) if one.is_floating_point() else one for name, one in VALUES.items()}
    leaves = {name: x[name].requires_grad_() for name in x if name in GRADIENTS and x[name].is_floating_point()}
    q, k, v, do = (x[name] for name in ("q", "k", "v", "do"))
'''


def formula(case: Case) -> str:
    """The source of `expected(dtype)`, which returns every intermediate of the case by name, and of what it needs.

    It reads VALUES, the contiguous values by name.
    """
    body = _lazy(case) if case.family == "lazy" else _softmax(case)
    lines = [*_positions(case), *_visible_keys(case), *body, *_gradients(case)]
    return f"GRADIENTS = {GRADIENT_OF!r}\n\n{_INTRO}" + "".join(f"    {line}\n" for line in lines)


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


def _visible_keys(case: Case) -> Iterator[str]:
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
        f"keys, values = (one.repeat_interleave({group}, 1) for one in (k, v))"
        if group > 1
        else "keys, values = k, v"
    )
    yield f"s = {case.scale!r} * (q @ keys.mT)"
    yield (
        f"t = {case.softcap!r} * torch.tanh(s / {case.softcap!r})"
        if case.softcap is not None
        else "t = s"
    )
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
    if case.alibi:
        yield "(dt,) = torch.autograd.grad(o, [t], do, retain_graph=True)"
    yield "wanted = [p, s, *leaves.values()]"
    yield "dp, ds, *found = torch.autograd.grad(o, wanted, do, allow_unused=True)"
    yield "dp = dp * seen"
    if case.family == "lazy":
        yield "delta = (p * dp).sum(-1)"
    yield 'results = {"LSE": lse, "P": p, "O": o, "dP": dp, "delta": delta, "dS": ds}'
    yield "results |= {GRADIENTS[name]: gradient for name, gradient in zip(leaves, found)}"
    if case.alibi:
        yield 'results["dAlibi"] = -(dt * (diagonal - j).abs()).sum((0, 2, 3))'
    # What nothing is said about: the LSE of a row that sees no key, and dP where none is seen.
    yield 'free = {"LSE": ~seen.any(-1).expand(lse.shape), "dP": ~seen.expand(dp.shape)}'
    yield "return {name: value.detach() for name, value in results.items() if value is not None}, free"


# Numbers of all tensors of a program together from which they are written as bytes.
MOST_NUMBERS = 4096
_WIDTH = 112


def literal(tensor: Tensor, *, as_bytes: bool) -> str:
    """An expression that makes a contiguous tensor on the CPU: its numbers, or where they are many its bytes."""
    tensor, kind = tensor.detach().cpu().contiguous(), str(tensor.dtype)
    first = tensor.flatten()[0] if tensor.numel() else tensor.new_zeros(())
    if bool(((tensor == first) | ((tensor != tensor) & (first != first))).all()):
        return f"torch.full({list(tensor.shape)}, {_number(first.item(), tensor)}, dtype={kind})"
    if as_bytes:
        return _bytes(tensor, kind)
    return f"torch.tensor({_nested(tensor.tolist(), tensor)}, dtype={kind})"


def _nested(numbers: Any, tensor: Tensor) -> str:
    if isinstance(numbers, list):
        return f"[{', '.join(_nested(one, tensor) for one in numbers)}]"
    return _number(numbers, tensor)


def _number(number: Any, tensor: Tensor) -> str:
    """The shortest decimal that is this number in the tensor's dtype."""
    if not isinstance(number, float):
        return repr(number)
    if number != number or abs(number) == float("inf"):
        return f'float("{number}")'
    shortened = (f"{number:.{digits}g}" for digits in range(2, 17))
    return next(
        (text for text in shortened if tensor.new_tensor(float(text)).item() == number),
        repr(number),
    )


def _bytes(tensor: Tensor, kind: str) -> str:
    import torch

    raw = tensor.flatten().view(torch.uint8).numpy().tobytes()
    lines = textwrap.wrap(base64.b64encode(raw).decode(), _WIDTH)
    text = "\n".join(f'    "{line}"' for line in lines)
    return f"of_bytes((\n{text}\n), {list(tensor.shape)}, {kind})"


OF_BYTES = '''

def of_bytes(text, shape, dtype):
    """A tensor of the bytes that a text holds."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype).reshape(shape)

'''

LAYING = f'''

def guarded(size, dtype):
    """[size] known numbers, so that a read outside a tensor gives the same in every run."""
    if size * dtype.itemsize >= {MAPPED}:
        return torch.zeros(size, dtype=dtype, device=DEVICE)
    ramp = torch.arange(size, device=DEVICE) * 7919 % 1021
    return ((ramp / 1021 * 4 + 4) * (1 - 2 * (ramp % 2))).to(dtype)


def laid(value, storage, size, strides, offset):
    """A tensor with these strides, in elements, inside a storage; those of one storage share it."""
    if storage not in STORAGES:
        STORAGES[storage] = guarded(size, value.dtype)
    tensor = STORAGES[storage].as_strided(value.shape, strides, offset)
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)
    tensor[once] = value[once].to(DEVICE)
    return tensor

'''

ROUNDING = "DTYPE, UNIT = torch.{dtype}, {unit!r}  # the kernel's, and how far one rounding goes"

ARITHMETIC = '''
def wrong(results):
    """What results, by name in lower case, differ from what they should be by more than rounding does, in sentences."""
    exact, free = expected(torch.float64)
    rounded, _ = expected(DTYPE)
    found = []
    for name, value in exact.items():
        actual = results.get(name.lower())
        if actual is None:
            continue
        # Sixty-four times what the same formulas lose in the kernel's dtype, or a few roundings of the largest number.
        allowed = 64 * (rounded[name].double() - value).abs().max() + 16 * UNIT * value.abs().max()
        actual = actual.detach().cpu().double().reshape(value.shape)
        bad = ~((actual - value).abs() <= allowed) & ~free.get(name, torch.zeros((), dtype=torch.bool))
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            found.append(f"{name}{list(at)} is {actual[at]:.6g} and should be {value[at]:.6g} ({int(bad.sum())} wrong)")
    return found

'''

BACKWARD = '''
def run():
    """What the target gives, by name in lower case."""
    returned = target(**ARGUMENTS) or {}
    results = {name: ARGUMENTS[TAKES[name]] for name in OUTPUTS}
    results |= {str(name).lower(): value for name, value in returned.items() if value is not None}
    return {"o" if name == "out" else name: value for name, value in results.items()}

'''

FORWARD = '''
def run():
    """What the target and autograd give, by name in lower case."""
    names = [name for name in GRADIENTS if TAKES.get(name) in ARGUMENTS and TENSORS[name].is_floating_point()]
    leaves = {TAKES[name]: TENSORS[name].detach().requires_grad_() for name in names}
    returned = target(**ARGUMENTS | leaves)
    results = dict(returned) if isinstance(returned, dict) else {}
    results = {"o" if str(name).lower() == "out" else str(name).lower(): value for name, value in results.items()}
    if not results:
        results["o"] = returned[0] if isinstance(returned, (tuple, list)) else returned
    found = torch.autograd.grad(results["o"], list(leaves.values()), TENSORS["do"], allow_unused=True)
    return results | {GRADIENTS[name].lower(): gradient for name, gradient in zip(names, found) if gradient is not None}

'''

END = """
if __name__ == "__main__":
    for _ in range(REPEATS):
        said = wrong(run())
        assert not said, "; ".join(said)
    print("right: the fault is gone")
"""
