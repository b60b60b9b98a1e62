"""Case: one attention problem to run, every option resolved; and the values drawn for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .failures import UsageFailure

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("float32", "float16", "bfloat16")
PATTERNS = ("normal", "small", "large", "negative", "offset", "lowrank")
DOTS = ("ieee", "tf32")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Case:
    """Every option of contract's case, resolved for one family.

    The defaults make a small problem that still has a partial tile along every axis: three tiles of 32 rows and five of
    16 keys, a head dim that is no power of two, a bias window that ends inside a tile.
    """

    family: str
    batch: int = 2
    heads: int = 3
    kv_heads: int = 3
    seqlen_q: int = 72
    seqlen_k: int = 72
    head_dim: int = 24
    head_dim_v: int = 24
    dtype: str = "float32"
    causal: bool = False
    window: tuple[int, int] | None = None
    softcap: float | None = None
    scale: float = 24**-0.5
    bias: bool = False
    bias_window: int = 40
    tau: tuple[float, ...] | None = None
    """One a head; None in the softmax family."""
    seqlens: tuple[int, ...] | None = None
    seed: int = 0
    device: str = "cpu"
    layouts: tuple[tuple[str, str], ...] = ()
    """(tensor, layout) as asked for; none means the three default runs."""
    block_m: int = 32
    block_n: int = 16
    pattern: str = "normal"
    dots: str | None = None
    """None where nobody said: then what the target's backend does by default."""
    repeat: int = 1

    def size(self, axis: str) -> int:
        """The length of an axis, by its letter in the table of intermediates."""
        return {
            "b": self.batch, "h": self.heads, "g": self.kv_heads, "m": self.seqlen_q, "n": self.seqlen_k,
            "d": self.head_dim, "e": self.head_dim_v, "w": self.bias_window, "1": 1,
        }[axis]  # fmt: skip

    def has(self, optional: str) -> bool:
        """Whether an optional input ("bias", "tau" or "" for none) takes part."""
        return {"": True, "bias": self.bias, "tau": self.tau is not None}[optional]


def resolve(options: Mapping[str, Any], family: str, *, takes_bias: bool) -> Case:
    """A Case from the options that were given (None or absent: not given), with the defaults of the family.

    Raises:
        UsageFailure: a value that no case can have, or an option that the family does not know.
    """
    given = {name: value for name, value in options.items() if value is not None}
    _refuse_foreign(given, family)
    given.setdefault("seqlen_q", given.get("seqlen", _longest(given)))
    given.setdefault("seqlen_k", given.get("seqlen", given["seqlen_q"]))
    given.setdefault("kv_heads", given.get("heads", Case.heads))
    given.setdefault("head_dim_v", given.get("head_dim", Case.head_dim))
    _check_counts(given)
    given.setdefault("scale", float(given.get("head_dim", Case.head_dim)) ** -0.5)
    given.setdefault("bias", family == "lazy" and takes_bias)
    if "bias_window" in given and not given["bias"]:
        raise UsageFailure("--bias-window: this case has no bias", "drop it, or check a target that takes bias")
    given.setdefault("causal", family == "lazy")
    if family == "lazy":
        given["tau"] = _tau(given)
    known = {field.name for field in fields(Case)}
    case = Case(family=family, **{name: value for name, value in given.items() if name in known})
    _check(case)
    return case


def _longest(given: Mapping[str, Any]) -> int:
    return max(given["seqlens"]) if given.get("seqlens") else Case.seqlen_q


def _refuse_foreign(given: Mapping[str, Any], family: str) -> None:
    if family == "lazy":
        if given.get("causal") is False:
            raise UsageFailure("--no-causal: lazy attention is always causal", "drop --no-causal")
        foreign = {"window", "softcap", "kv_heads", "head_dim_v"} & set(given)
        way_out = "drop it, or check a target of the softmax family"
    else:
        foreign = {"tau", "bias_window"} & set(given)
        way_out = "drop it, or check a target that takes tau"
    if foreign:
        name = sorted(foreign)[0]
        raise UsageFailure(f"--{name.replace('_', '-')}: the {family} family has no such option", way_out)


def _check_counts(given: Mapping[str, Any]) -> None:
    counts = ("batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "bias_window", "repeat")
    for name in counts:
        if name in given and given[name] < 1:
            raise UsageFailure(f"--{name.replace('_', '-')} must be at least 1, got {given[name]}")
    for name in ("block_m", "block_n"):
        value = given.get(name, 16)
        if value < 16 or value & (value - 1):
            raise UsageFailure(f"--{name.replace('_', '-')} must be a power of two of at least 16, got {value}")


def _tau(given: Mapping[str, Any]) -> tuple[float, ...]:
    heads = given.get("heads", Case.heads)
    # Both signs, none of which puts a whole row on the ReLU's kink, where little could be compared.
    tau = tuple(given.get("tau") or ((-0.5, 0.5, -3.0, 1.0)[h % 4] for h in range(heads)))
    tau = tau * heads if len(tau) == 1 else tau
    if len(tau) != heads:
        raise UsageFailure(f"--tau takes one number, or one a head: {heads} heads, got {len(tau)} numbers")
    return tau


def _check(case: Case) -> None:
    choices = (("dtype", DTYPES), ("pattern", PATTERNS), ("dots", (None, *DOTS)), ("device", DEVICES))
    for name, known in choices:
        if getattr(case, name) not in known:
            listed = ", ".join(choice for choice in known if choice)
            raise UsageFailure(f"--{name} must be one of {listed}, got {getattr(case, name)!r}")
    if case.heads % case.kv_heads:
        raise UsageFailure(f"--kv-heads must divide --heads, got {case.kv_heads} and {case.heads}")
    if case.family == "lazy" and case.seqlen_q != case.seqlen_k:
        raise UsageFailure(f"lazy attention needs as many keys as rows, got {case.seqlen_q} and {case.seqlen_k}")
    if case.seqlens is not None:
        _check_seqlens(case, case.seqlens)
    if not 0 <= case.seed < 2**63:
        raise UsageFailure(f"--seed must lie in 0 to 2^63 - 1, got {case.seed}")
    if case.window is not None and min(case.window) < -1:
        raise UsageFailure(f"--window takes numbers of keys, -1 for no limit, got {case.window[0]},{case.window[1]}")
    if case.softcap is not None and not case.softcap > 0:
        raise UsageFailure(f"--softcap must be above 0, got {case.softcap}")
    if not all(math.isfinite(number) for number in (case.scale, *(case.tau or ()))):
        raise UsageFailure("--scale and --tau must be finite numbers")


def _check_seqlens(case: Case, seqlens: tuple[int, ...]) -> None:
    if len(seqlens) != case.batch:
        raise UsageFailure(f"--seqlens takes one length a batch: {case.batch} batches, got {len(seqlens)}")
    if case.seqlen_q != case.seqlen_k:
        raise UsageFailure("--seqlens (right padding) needs as many keys as query rows")
    if min(seqlens) < 0 or max(seqlens) > case.seqlen_q:
        raise UsageFailure(f"--seqlens must lie in 0 to {case.seqlen_q}, got {', '.join(map(str, seqlens))}")


def draw(case: Case) -> dict[str, Tensor]:
    """The values of a case: contiguous CPU tensors by name, the same for a seed on every machine.

    Returns:
        q [B, H, M, D], k [B, Hkv, N, D], v [B, Hkv, N, Dv], do [B, H, M, Dv] in the case's dtype; bias ([H, W] lazy,
        [1, H, M, N] softmax) and tau [H], float32 parameters in lazy, bias in the case's dtype in softmax;
        seqlens [B] int32. Optional ones only where the case has them.
    """
    import torch

    generator = torch.Generator().manual_seed(case.seed)

    def normal(axes: str) -> Tensor:
        return torch.randn([case.size(axis) for axis in axes], generator=generator)

    values = {"q": normal("bhmd"), "k": normal("bgnd"), "v": normal("bgne"), "do": normal("bhme")}
    values |= {"bias": normal("hw" if case.family == "lazy" else "1hmn")} if case.bias else {}
    values = _patterned(values, case)
    for name in values:
        if not (name == "bias" and case.family == "lazy"):
            values[name] = values[name].to(getattr(torch, case.dtype))
    if case.tau is not None:
        values["tau"] = torch.tensor(case.tau, dtype=torch.float32)
    if case.seqlens is not None:
        values["seqlens"] = torch.tensor(case.seqlens, dtype=torch.int32)
    return values


def _patterned(values: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
    """The pattern laid over standard normal values; each is known to expose a class of faults that the others hide."""
    q, k = values["q"], values["k"]
    if case.pattern == "small":  # scores near 0: P is nearly uniform, and lazy rows at tau = -1 sit on the kink
        values |= {"q": q * 0.02, "k": k * 0.02}
        values |= {"bias": values["bias"] * 0} if "bias" in values else {}
    elif case.pattern == "large":  # scores four times as wide: P is nearly one-hot
        values |= {"q": q * 4}
    elif case.pattern == "negative":  # every score near -120, so exp(S) underflows unless the maximum is subtracted
        root = (120.0 / (case.scale * case.head_dim)) ** 0.5 if case.scale > 0 else 1.0
        width = 0.2 / max(1.0, case.scale) ** 0.5  # scores spread by 3.1 at most: all below -88.7
        values |= {"q": q * width + root, "k": k * width - root}
    elif case.pattern == "offset":  # a mean that rounding and cancellation feel
        values |= {name: values[name] + 1.0 for name in ("q", "k", "v", "do")}
    elif case.pattern == "lowrank":  # rows that nearly repeat one another
        values |= {name: _low_rank(values[name]) for name in ("q", "k", "v")}
    return values


def _low_rank(tensor: Tensor) -> Tensor:
    head = tensor[..., :2, :]
    mix = tensor[..., :2]
    return (mix @ head[..., : mix.shape[-1], :]) if tensor.shape[-2] > 1 and tensor.shape[-1] > 1 else tensor
