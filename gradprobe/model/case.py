"""Case: one attention problem to run, every option resolved."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated

from msgspec import Meta

from .assignment import OUTPUTS, PLAIN
from .intermediates import lookup

DTYPES = ("float32", "float16", "bfloat16")
PATTERNS = (
    "normal", "small", "large", "wide", "negative", "positive", "offset", "lowrank", "dyadic",
)  # fmt: skip
DOTS = ("ieee", "bf16x6", "tf32x3", "bf16x3", "tf32")
"""As Triton calls them, the finest first."""
DEVICES = ("auto", "cpu", "cuda")
# Lazy tau beside dyadic values: tau / (i + 1) changes no P in 16 bits, and is far above the least float32.
DYADIC_TAU = 2.0**-20
ALIGNMENTS = ("bottom-right", "top-left")
MASKS = ("random", "dead-rows", "padding")
# How sequences, or heads, are divided among ranks.
SHARDS = ("contiguous", "zigzag", "striped", "heads")
# What a target may do by itself.
IMPLIED = ("causal", "window", "softcap", "scale")
# The forms in which a target takes a mask: True, or 0, where a key may be seen; and a window: (LEFT, RIGHT), or LEFT.
BOOLEAN, ADDITIVE = MASK_FORMS = ("boolean", "additive")
PAIR, NUMBER = WINDOW_FORMS = ("pair", "number")
# And an LSE: the natural logarithm, or that to base 2.
NATURAL, LOG2 = LSE_FORMS = ("natural", "log2")


@dataclass(frozen=True)
class Architecture:
    """Source: the CUDA C++ Programming Guide, ROCm's specifications."""

    name: str
    capability: tuple[int, int]
    shared_bytes: int  # of a block
    processors: int
    gibibytes: int = 80
    gfx: str = ""
    warp: int = 32


# By the words that --arch takes.
ARCHITECTURES = {
    "sm_70": Architecture("Tesla V100-SXM2-32GB", (7, 0), 96 << 10, 80, 32),
    "sm_75": Architecture("Tesla T4", (7, 5), 64 << 10, 40, 15),
    "sm_80": Architecture("NVIDIA A100-SXM4-80GB", (8, 0), 163 << 10, 108),
    "sm_86": Architecture("NVIDIA GeForce RTX 3090", (8, 6), 99 << 10, 82, 24),
    "sm_89": Architecture("NVIDIA GeForce RTX 4090", (8, 9), 99 << 10, 128, 24),
    "sm_90": Architecture("NVIDIA H100", (9, 0), 227 << 10, 132),
    "sm_100": Architecture("NVIDIA B200", (10, 0), 227 << 10, 148, 180),
    "sm_120": Architecture("NVIDIA GeForce RTX 5090", (12, 0), 99 << 10, 170, 32),
    "gfx90a": Architecture("AMD Instinct MI250X", (9, 0), 64 << 10, 110, 64, "gfx90a", 64),
    "gfx942": Architecture("AMD Instinct MI300X", (9, 4), 64 << 10, 304, 192, "gfx942", 64),
    "gfx950": Architecture("AMD Instinct MI355X", (9, 5), 160 << 10, 256, 288, "gfx950", 64),
    "gfx1100": Architecture("AMD Radeon RX 7900 XTX", (11, 0), 64 << 10, 48, 24, "gfx1100"),
    "gfx1201": Architecture("AMD Radeon RX 9070 XT", (12, 0), 64 << 10, 32, 16, "gfx1201"),
}
DEFAULT_ARCHITECTURE = "sm_90"

_SIZES = {
    "b": "batch", "h": "heads", "g": "kv_heads", "m": "seqlen_q", "n": "seqlen_k", "d": "head_dim", "e": "head_dim_v",
    "w": "bias_window",
}  # fmt: skip
_INPUT_AXES = {
    "q": "bhmd", "k": "bgnd", "v": "bgne", "do": "bhme", "o": "bhme", "lse": "bhm", "delta": "bhm", "keep": "bhmn",
    "tau": "h", "alibi": "h", "sinks": "h", "seqlens": "b",
}  # fmt: skip

# Heads or batches: a grid of CUDA has no more along an axis that counts them.
_Count = Annotated[int, Meta(ge=1, le=65_535)]


@dataclass(frozen=True)
class Case:
    """Every option of a check. The defaults have a partial tile along every axis."""

    family: str
    batch: _Count = 2
    heads: _Count = 3
    kv_heads: int = 3
    seqlen_q: int = 72
    seqlen_k: int = 72
    head_dim: int = 24
    head_dim_v: int = 24
    dtype: str = "float32"
    causal: bool = False
    align: str = "bottom-right"
    """The corner of the diagonal of causal, window and alibi."""
    window: tuple[int, int] | None = None
    softcap: float | None = None
    scale: float = 24**-0.5
    bias: bool = False
    bias_window: int = 40
    bias_axes: str = "hmn"
    """Of the softmax family: the axes that are not broadcast."""
    bias_rank: int = 4
    alibi: bool = False
    mask: str | None = None
    """"given" where a file of inputs holds it."""
    mask_axes: str = "bhmn"
    mask_rank: int = 4
    sinks: bool = False
    dropout: float = 0.0
    tau: tuple[float, ...] | None = None
    seqlens: tuple[int, ...] | None = None
    cu_seqlens_q: tuple[int, ...] | None = None
    cu_seqlens_k: tuple[int, ...] | None = None
    seed: int = 0
    device: str = "cpu"
    layouts: tuple[tuple[str, str], ...] = ()
    """Of the one run that is asked for; none means `runs`."""
    runs: tuple[tuple[tuple[str, str], ...], ...] = ()
    block_m: int = 32
    block_n: int = 16
    pattern: str = "normal"
    dots: str | None = None  # None: the backend's
    repeat: int = 1
    poison: bool = False
    """Whether new memory holds NaN, and 7.0 in every other repeat."""
    strict: bool = False
    inplace: tuple[str, ...] = ()
    recover: bool = True
    inputs: str | None = None
    shapes: str = PLAIN
    implied: tuple[str, ...] = ()
    ranks: int | None = None
    shards: str = "contiguous"
    """One of SHARDS, or a `FILE.py:function`."""
    as_cuda: bool = False
    arch: str | None = None
    untested: bool = False
    window_as: str | None = None
    mask_as: str = BOOLEAN
    lse_as: str = NATURAL

    def size(self, axis: str) -> int:
        return 1 if axis == "1" else int(getattr(self, _SIZES[axis]))

    @property
    def scores(self) -> int:
        return self.batch * self.heads * self.seqlen_q * self.seqlen_k

    def exists(self, name: str) -> bool:
        row = lookup(name)
        if row is None or row.step(self.family) is None:
            return False
        return not row.needs or getattr(self, row.needs) not in (False, None)

    def axes(self, name: str) -> str:
        row = lookup(name)
        assert row is not None
        if row.name == "dBias" and self.family == "softmax":
            return _broadcast(self.bias_axes)
        step = row.step(self.family)
        assert step is not None
        return step.axes

    def input_axes(self, name: str) -> str:
        """ "" of one that has neither batches nor heads."""
        if name == "bias":
            return self.axes("dBias")
        if name == "mask":
            return _broadcast(self.mask_axes)
        if name in OUTPUTS:
            return self.axes(name)
        return _INPUT_AXES.get(name, "")

    def with_heads(self, heads: int, kv_heads: int) -> Case:
        tau = None if self.tau is None else self.tau[:heads]
        return replace(self, heads=heads, kv_heads=kv_heads, tau=tau)

    def with_lengths(self, rows: int, keys: int) -> Case:
        """Padded sequences are cut to them."""
        cut = None if self.seqlens is None else tuple(min(end, rows) for end in self.seqlens)
        return replace(self, seqlen_q=rows, seqlen_k=keys, seqlens=cut)


# How a case is run, and in which forms the target takes it: no number depends on these.
_HOW = (
    "device", "layouts", "runs", "block_m", "block_n", "dots", "repeat", "poison",
    "strict", "inplace", "recover", "shapes", "implied", "as_cuda", "bias_rank", "mask_rank",
    "ranks", "shards", "arch", "untested", "window_as", "mask_as", "lse_as",
)  # fmt: skip


def unlike(case: Case, other: Case) -> list[str]:
    """The options that make other results right."""
    names = [each.name for each in fields(Case) if each.name not in _HOW]
    return [name for name in names if getattr(case, name) != getattr(other, name)]


def shortened(length: int, span: int) -> int:
    """Below two spans, with the last tile as full."""
    return length if length < 2 * span else span + length % span


def fewer_heads(heads: int, kv_heads: int, most: int) -> tuple[int, int]:
    """As many query heads each as before."""
    keys = min(kv_heads, most)
    return heads // kv_heads * keys, keys


def flag_of(option: str) -> str:
    return "--" + option.replace("_", "-")


def ranked(name: str, case: Case) -> tuple[str, int] | None:
    """Of a bias, its gradient or a mask the four axes, and the target's rank."""
    kind = {"bias": "bias", "dbias": "bias", "mask": "mask"}.get(name.lower())
    if kind is None or case.family == "lazy":
        return None
    return _broadcast(getattr(case, f"{kind}_axes")), getattr(case, f"{kind}_rank")


def _broadcast(held: str) -> str:
    return "".join(letter if letter in held else "1" for letter in "bhmn")
