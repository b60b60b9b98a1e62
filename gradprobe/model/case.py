"""Case: one attention problem to run, every option resolved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from .assignment import OUTPUTS, PLAIN, in_words
from .failures import UsageFailure, did_you_mean
from .intermediates import lookup

DTYPES = ("float32", "float16", "bfloat16")
PATTERNS = ("normal", "small", "large", "negative", "positive", "offset", "lowrank", "dyadic")
DOTS = ("ieee", "tf32")
DEVICES = ("auto", "cpu", "cuda")
# Elements of one tensor: 64 GiB in float32, and every run holds dozens.
LARGEST = 2**34
# Of --repeat and --schedules: what happens in a share p of n runs is seen in one of them with 1 - (1 - p)^n, which is
# 95 % for p = 3 / n. Without a bound a slip of the hand is a command that never ends.
MOST_RUNS = 10_000
# Of --scale and --tau, the largest number of float16: some kernels hold q * scale in q's dtype, and P, which grows with
# tau. P = exp(S - LSE) overflows by the rounding of S alone, 2^-11 of it in TF32, where S is beyond 2^18.
MOST = 65504.0
# Of --softcap, the largest number of float32.
MOST_SOFTCAP = (2 - 2.0**-23) * 2.0**127
# What is smaller has no reciprocal in float32, and GPUs take it for 0.
LEAST_NORMAL = 2.0**-126
OVERFLOWS = "a right kernel overflows there: nothing could be told from that"
# Lazy tau beside dyadic values: tau / (i + 1) changes no P in 16 bits, and is far above the least float32.
DYADIC_TAU = 2.0**-20
UNDERFLOWS = "a right kernel, which holds it in float32, takes what is smaller for 0"
CONFIGS = ("first", "all")
REFERENCE, IDENTITIES = ORACLES = ("reference", "identities")
ALIGNMENTS = ("bottom-right", "top-left")
MASKS = ("random", "dead-rows", "padding")
# How sequences, or heads, are divided among ranks.
SHARDS = ("contiguous", "zigzag", "striped", "heads")
# Each is a process of its own.
MOST_RANKS = 64
# The options that take one of several words.
CHOICES = {"dtype": DTYPES, "pattern": PATTERNS, "dots": DOTS, "device": DEVICES}
CHOICES |= {"align": ALIGNMENTS, "mask": MASKS, "configs": CONFIGS, "oracle": ORACLES}
# What a target may do by itself.
IMPLIED = ("causal", "window", "softcap", "scale")

_SIZES = {"b": "batch", "h": "heads", "g": "kv_heads", "m": "seqlen_q", "n": "seqlen_k"}
_SIZES |= {"d": "head_dim", "e": "head_dim_v", "w": "bias_window"}
_INPUT_AXES = {"q": "bhmd", "k": "bgnd", "v": "bgne", "do": "bhme", "o": "bhme", "lse": "bhm", "delta": "bhm"}
_INPUT_AXES |= {"mask": "bhmn", "keep": "bhmn", "tau": "h", "alibi": "h", "sinks": "h", "seqlens": "b"}


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
    align: str = "bottom-right"
    """Which corner the diagonal of causal, window and alibi runs through; the same where M = N."""
    window: tuple[int, int] | None = None
    softcap: float | None = None
    scale: float = 24**-0.5
    bias: bool = False
    bias_window: int = 40
    """Of the lazy family."""
    bias_axes: str = "hmn"
    """Of the softmax family: the axes of [B, H, M, N] that the bias has; along the others it is broadcast."""
    bias_rank: int = 4
    """How many axes the target's bias has; below 4 the first broadcast axes are missing."""
    alibi: bool = False
    mask: str | None = None
    """Which boolean mask is drawn: one of MASKS, or None; "given" where a file of inputs holds it."""
    mask_axes: str = "bhmn"
    """As `bias_axes`; a padding mask has b and n."""
    mask_rank: int = 4
    """As `bias_rank`."""
    sinks: bool = False
    dropout: float = 0.0
    """The probability that an entry of P is dropped, by a mask that the target is given."""
    tau: tuple[float, ...] | None = None
    """One a head; None in the softmax family."""
    seqlens: tuple[int, ...] | None = None
    cu_seqlens_q: tuple[int, ...] | None = None
    """Where each packed sequence begins, and where the last one ends; None where nothing is packed."""
    cu_seqlens_k: tuple[int, ...] | None = None
    seed: int = 0
    device: str = "cpu"
    layouts: tuple[tuple[str, str], ...] = ()
    """(tensor, layout) of the one run that is asked for; none means `runs`."""
    runs: tuple[tuple[tuple[str, str], ...], ...] = ()
    """The same of several runs; none means the three default ones."""
    block_m: int = 32
    block_n: int = 16
    pattern: str = "normal"
    dots: str | None = None
    """None where it was not given: then what the target's backend does by default."""
    oracle: str = REFERENCE
    """What judges, one of ORACLES: every element by a reference, or in O(N D) sums of them by identities alone."""
    repeat: int = 1
    configs: str = "first"
    """Which configurations of autotuned kernels run, one of CONFIGS: on a GPU "first" is what their autotuner takes."""
    pinned: tuple[tuple[str, int], ...] = ()
    """The number of the configuration that some kernels take, by name."""
    schedules: int = 0
    """In how many random orders of threads and blocks CUDA kernels run on the CPU, besides the natural order."""
    poison: bool = False
    """Whether memory that the target allocates without values holds NaN, and 7.0 in every other repeat."""
    taps: tuple[str, ...] = ()
    """Variables of the target's Triton kernels that are stored: "dS=ds[b, h, offs_m, offs_n]"."""
    strict: bool = False
    """Whether a kernel that is coarser than its contract is a mismatch."""
    inplace: tuple[str, ...] = ()
    """The inputs that the target may write over."""
    recover: bool = True
    """Whether intermediates that a target does not expose are recovered from its gradients."""
    inputs: str | None = None
    """The file that the values come from; None where they are drawn."""
    shapes: str = PLAIN
    """The order of axes in which the target takes and returns q, k, v and their like, one of shapes.SHAPES."""
    implied: tuple[str, ...] = ()
    """The options of IMPLIED that the target applies by itself, without a parameter for them."""
    ranks: int | None = None
    """Over how many processes the target works at one problem; None where it is given the whole of it."""
    shards: str = "contiguous"
    """Which part each of them holds: one of SHARDS, or the `FILE.py:function` that says it."""
    as_cuda: bool = False
    """Whether tensors say that they are on a GPU where kernels are interpreted for want of one."""

    def size(self, axis: str) -> int:
        """The length of an axis, by its letter in the table of intermediates."""
        return 1 if axis == "1" else int(getattr(self, _SIZES[axis]))

    @property
    def scores(self) -> int:
        """The elements of all its score matrices."""
        return self.batch * self.heads * self.seqlen_q * self.seqlen_k

    def has(self, optional: str) -> bool:
        """Whether an optional input ("bias", "tau" or "" for none) takes part."""
        return {"": True, "bias": self.bias, "sinks": self.sinks, "tau": self.tau is not None}[optional]

    def axes(self, name: str) -> str:
        """The axes of an intermediate, as in its table; of dBias, those of this case's bias."""
        row = lookup(name)
        assert row is not None
        if row.name == "dBias" and self.family == "softmax":
            return _broadcast(self.bias_axes)
        step = row.step(self.family)
        assert step is not None
        return step.axes

    def input_axes(self, name: str) -> str:
        """The axes of an input or an output, one letter each; "" of one that has neither batches nor heads."""
        if name == "bias":
            return self.axes("dBias")
        if name == "mask":
            return _broadcast(self.mask_axes)
        if name in OUTPUTS:
            return self.axes(name)
        return _INPUT_AXES.get(name, "")

    def with_heads(self, heads: int, kv_heads: int) -> Case:
        """The case with the first so many of its heads."""
        return replace(self, heads=heads, kv_heads=kv_heads, tau=None if self.tau is None else self.tau[:heads])

    def with_lengths(self, rows: int, keys: int) -> Case:
        """The case with other lengths; the lengths of padded sequences are cut to fit."""
        seqlens = None if self.seqlens is None else tuple(min(length, rows) for length in self.seqlens)
        return replace(self, seqlen_q=rows, seqlen_k=keys, seqlens=seqlens)


# How a case is run, and in which forms the target takes it: no number depends on these.
_HOW = (
    "device", "layouts", "runs", "block_m", "block_n", "dots", "repeat", "configs", "pinned", "schedules", "poison",
    "taps", "strict", "inplace", "recover", "oracle", "shapes", "implied", "as_cuda", "bias_rank", "mask_rank",
    "ranks", "shards",
)  # fmt: skip


def unlike(one: Case, other: Case) -> list[str]:
    """The options by which other results are right for two cases: none of the same values and formulas."""
    names = [each.name for each in fields(Case) if each.name not in _HOW]
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def shortened(length: int, span: int) -> int:
    """The span and the remainder in place of a length of two spans or more: the last tile is as full as before."""
    return length if length < 2 * span else span + length % span


def fewer_heads(heads: int, kv_heads: int, most: int) -> tuple[int, int]:
    """Heads and key heads, at most so many of these, each with as many query heads as before."""
    keys = min(kv_heads, most)
    return heads // kv_heads * keys, keys


def flag_of(option: str) -> str:
    """An option as it is typed: --seqlen-q of seqlen_q."""
    return "--" + option.replace("_", "-")


def ranked(name: str, case: Case) -> tuple[str, int] | None:
    """The four axes of a bias, its gradient or a mask, and how many of them the target has; None of anything else."""
    kind = {"bias": "bias", "dbias": "bias", "mask": "mask"}.get(name.lower())
    if kind is None or case.family == "lazy":
        return None
    return _broadcast(getattr(case, f"{kind}_axes")), getattr(case, f"{kind}_rank")


def _broadcast(held: str) -> str:
    return "".join(letter if letter in held else "1" for letter in "bhmn")


def resolve(options: Mapping[str, Any], family: str, *, takes_bias: bool, packs: bool = False) -> Case:
    """A Case from the options that were given (None or absent: not given), with the defaults of the family.

    Args:
        takes_bias: whether the target takes a bias, which a lazy case then has by default.
        packs: whether the target takes its sequences packed (cu_seqlens), so that `seqlens` means that.

    Raises:
        UsageFailure: a value that no case can have, or an option that the family does not know.
    """
    given = {name: value for name, value in options.items() if value is not None}
    _refuse_foreign(given, family)
    if packs and "seqlens" in given:
        _end_to_end(given)
    _pack(given)
    _leave_out(given)
    given.setdefault("seqlen_q", given.get("seqlen", max(given.get("seqlens") or (_default_length(given),))))
    given.setdefault("seqlen_k", given.get("seqlen", given["seqlen_q"]))
    given.setdefault("kv_heads", given.get("heads", Case.heads))
    if given.get("pattern") == "dyadic":
        given.setdefault("head_dim", 16)  # whose default scale is a power of two
    given.setdefault("head_dim_v", given.get("head_dim", Case.head_dim))
    _check_counts(given)
    given.setdefault("scale", float(given.get("head_dim", Case.head_dim)) ** -0.5)
    given.setdefault("bias", family == "lazy" and takes_bias)
    if "bias_window" in given and not given["bias"]:
        raise UsageFailure("--bias-window: this case has no bias", "drop it, or check a target that takes bias")
    _settle_ranks(given)
    given.setdefault("causal", family == "lazy" or "causal" in given.get("implied", ()))
    if family == "lazy":
        given["tau"] = _tau(given)
    known = {field.name for field in fields(Case)}
    case = Case(family=family, **{name: value for name, value in given.items() if name in known})
    _check(case)
    return case


def _default_length(given: Mapping[str, Any]) -> int:
    """The default, or the next length that can be cut in two for each rank."""
    parts = 2 * (given.get("ranks") or 1)
    return -(-Case.seqlen_q // parts) * parts


def _settle_ranks(given: dict[str, Any]) -> None:
    """Refuses a rank or axes without a bias or mask; a padding mask has batches and keys alone."""
    for name, ways in (("bias", "add --bias"), ("mask", "add --mask KIND")):
        for option in (f"{name}_rank", f"{name}_axes"):
            if option in given and not given.get(name):
                raise UsageFailure(f"{flag_of(option)}: this case has no {name}", ways)
    if given.get("mask") == "padding" and given.setdefault("mask_axes", "bn") != "bn":
        raise UsageFailure(f"--mask-axes {given['mask_axes']}: a padding mask has the axes bn", "drop it")


def _end_to_end(given: dict[str, Any]) -> None:
    """Turns sequence lengths into packed sequences, end to end in one batch, for a target that packs."""
    lengths = given.pop("seqlens")
    if given.pop("batch", len(lengths)) != len(lengths):
        raise UsageFailure(f"--seqlens takes one length a batch, got {len(lengths)} and another --batch")
    if min(lengths) < 0:
        raise UsageFailure(f"--seqlens must not be negative, got {', '.join(map(str, lengths))}")
    given["cu_seqlens"] = (0, *itertools.accumulate(lengths))


def _pack(given: dict[str, Any]) -> None:
    """Packed sequences set the lengths: one batch of all of them, end to end."""
    if "cu_seqlens" not in given:
        if "cu_seqlens_k" in given:
            raise UsageFailure("--cu-seqlens-k: nothing is packed", "give --cu-seqlens, that of the query rows, too")
        return
    given["cu_seqlens_q"] = given.pop("cu_seqlens")
    given.setdefault("cu_seqlens_k", given["cu_seqlens_q"])
    if "seqlens" in given:
        raise UsageFailure("--seqlens pads and --cu-seqlens packs", "give one of them")
    rows, keys = ("--cu-seqlens", "cu_seqlens_q", "seqlen_q"), ("--cu-seqlens-k", "cu_seqlens_k", "seqlen_k")
    for flag, name, length in (rows, keys):
        _check_ascends(flag, given[name])
        if given.setdefault(length, given.get("seqlen", given[name][-1])) != given[name][-1]:
            raise UsageFailure(
                f"{flag} ends at {given[name][-1]}, and the length is {given[length]}", "drop the length"
            )
    if len(given["cu_seqlens_q"]) != len(given["cu_seqlens_k"]):
        count = f"{len(given['cu_seqlens_q']) - 1} and {len(given['cu_seqlens_k']) - 1}"
        raise UsageFailure(f"--cu-seqlens and --cu-seqlens-k must have as many sequences, got {count}")
    if given.setdefault("batch", 1) != 1:
        raise UsageFailure(f"--cu-seqlens packs all sequences into one batch, got --batch {given['batch']}")


def _check_ascends(flag: str, ends: tuple[int, ...]) -> None:
    rises = all(before <= after for before, after in itertools.pairwise(ends))
    if len(ends) < 2 or ends[0] != 0 or ends[-1] < 1 or not rises:
        raise UsageFailure(
            f"{flag} must ascend from 0 to the number of rows, got {','.join(map(str, ends))}",
            "it holds where each sequence begins and where the last one ends: 0,37,101",
        )


def _leave_out(given: dict[str, Any]) -> None:
    """Sets one batch, or one head, where the target's shapes have no axis for more."""
    shapes = given.get("shapes", PLAIN)
    for letter, name in (("b", "batch"), ("h", "heads")):
        if letter not in shapes and given.setdefault(name, 1) != 1:
            raise UsageFailure(f"--shapes {shapes}: {in_words(shapes)} holds one of --{name}, got {given[name]}")


SOFTMAX_ALONE = {"window", "softcap", "kv_heads", "head_dim_v", "align", "alibi", "sinks", "dropout", "cu_seqlens"}
SOFTMAX_ALONE |= {"cu_seqlens_k", "bias_axes", "bias_rank", "mask", "mask_axes", "mask_rank"}
"""The options that the lazy family does not know."""


def _refuse_foreign(given: Mapping[str, Any], family: str) -> None:
    if family == "lazy":
        if given.get("causal") is False:
            raise UsageFailure("--no-causal: lazy attention is always causal", "drop --no-causal")
        foreign = SOFTMAX_ALONE & given.keys()
        way_out = "drop it, or check a target of the softmax family"
    else:
        foreign = {"tau", "bias_window"} & given.keys()
        way_out = "drop it, or check a target that takes tau"
    if foreign:
        raise UsageFailure(f"{flag_of(min(foreign))}: the {family} family has no such option", way_out)


def _check_counts(given: Mapping[str, Any]) -> None:
    counts = ("batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "bias_window", "repeat")
    for name in counts:
        if name in given and given[name] < 1:
            raise UsageFailure(f"{flag_of(name)} must be at least 1, got {given[name]}")
    for name in ("repeat", "schedules"):
        if given.get(name, 0) > MOST_RUNS:
            raise UsageFailure(
                f"--{name} must be at most {MOST_RUNS}, got {given[name]}",
                f"{MOST_RUNS} runs show with 95 % probability what happens in {3 / MOST_RUNS:.2%} of runs",
            )
    for name in ("block_m", "block_n"):
        value = given.get(name, 16)
        if value < 16 or value & (value - 1):
            raise UsageFailure(f"{flag_of(name)} must be a power of two of at least 16, got {value}")


def _tau(given: Mapping[str, Any]) -> tuple[float, ...]:
    heads = given.get("heads", Case.heads)
    # Both signs, none of which puts a whole row on the ReLU's kink, where little could be compared.
    known = (-DYADIC_TAU, DYADIC_TAU) if given.get("pattern") == "dyadic" else (-0.5, 0.5, -3.0, 1.0)
    tau = tuple(given.get("tau") or (known[h % len(known)] for h in range(heads)))
    tau = tau * heads if len(tau) == 1 else tau
    if len(tau) != heads:
        raise UsageFailure(f"--tau takes one number, or one a head: {heads} heads, got {len(tau)} numbers")
    return tau


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Refuses an option that takes one of several words and has another.

    Raises:
        UsageFailure: one has another, with the word that may be meant.
    """
    choices = CHOICES if options.get("inputs") is None else {**CHOICES, "mask": ("given",)}
    for name, known in choices.items():
        got = options.get(name)
        if got is not None and got not in known:
            way_out = did_you_mean(str(got), known, "")
            raise UsageFailure(f"--{name} must be one of {', '.join(known)}, got {got!r}", way_out)


def _check(case: Case) -> None:
    for name in ("q", "k", "v", "do"):
        count = math.prod(map(case.size, case.input_axes(name)))
        if count > LARGEST:  # which no machine's memory holds
            raise UsageFailure(f"{name} of this case would have {count:.1e} elements, more than {LARGEST:.1e}")
    refuse_unknown(vars(case))
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
    if not 0 <= case.dropout < 1:
        raise UsageFailure(f"--dropout must lie in 0 to 1, 1 excluded, got {case.dropout}")
    _check_axes(case, "bias")
    _check_axes(case, "mask")
    if case.mask in ("random", "dead-rows") and not {"m", "n"} <= set(case.mask_axes):
        raise UsageFailure(f"--mask-axes: a {case.mask} mask has m and n, got {case.mask_axes!r}")
    if case.softcap is not None and not case.softcap > 0:
        raise UsageFailure(f"--softcap must be above 0, got {case.softcap}")
    if case.softcap == math.inf:
        raise UsageFailure("--softcap must be finite, got inf", "drop it: no softcap is none")
    if not all(math.isfinite(number) for number in (case.scale, *(case.tau or ()))):
        raise UsageFailure("--scale and --tau must be finite numbers")
    _check_magnitudes(case)
    _check_ranks(case)


def _check_ranks(case: Case) -> None:
    """Refuses what cannot be divided among ranks."""
    if case.ranks is None:
        if case.shards != Case.shards:
            raise UsageFailure(f"--shards {case.shards}: nothing is divided among ranks", "add --ranks N")
        return
    if not 2 <= case.ranks <= MOST_RANKS:
        raise UsageFailure(f"--ranks must lie in 2 to {MOST_RANKS}, got {case.ranks}")
    if case.shards not in SHARDS and not case.shards.partition(":")[0].endswith(".py"):
        way_out = did_you_mean(case.shards, SHARDS, "known")
        raise UsageFailure(f"--shards {case.shards}: no such way, and no FILE.py:FUNCTION", way_out)
    # What has a row or a key of its own for each entry of the scores belongs to two ranks at once.
    divided = ("bias", "mask", "dropout", "sinks", "seqlens", "cu_seqlens_q", "taps", "schedules")
    for name in divided:
        if getattr(case, name):
            flag = flag_of({"cu_seqlens_q": "cu_seqlens", "taps": "tap"}.get(name, name))
            raise UsageFailure(f"{flag}: it is not divided among ranks", "drop it, or --ranks")
    if case.family != "softmax":
        raise UsageFailure(f"--ranks: the {case.family} family is not divided among ranks", "drop it")
    if case.oracle == IDENTITIES:
        raise UsageFailure("--ranks: identities alone do not judge shards", "drop --oracle")


def _check_magnitudes(case: Case) -> None:
    """Refuses numbers so large or small that float32 overflows or underflows in a right kernel."""
    numbers = [("scale", case.scale, MOST), ("softcap", case.softcap or 0.0, MOST_SOFTCAP)]
    numbers += [("tau", tau, MOST) for tau in case.tau or ()]
    for name, number, most in numbers:
        if abs(number) > most:
            raise UsageFailure(f"--{name} must be at most {most:.3g} in magnitude, got {number:g}", OVERFLOWS)
        if name != "tau" and 0 < abs(number) < LEAST_NORMAL:
            raise UsageFailure(f"--{name} must be at least {LEAST_NORMAL:.3g} in magnitude, got {number:g}", UNDERFLOWS)


def _check_axes(case: Case, name: str) -> None:
    axes, rank = getattr(case, f"{name}_axes"), getattr(case, f"{name}_rank")
    if not (axes or case.inputs) or set(axes) - set("bhmn") or len(set(axes)) < len(axes):
        raise UsageFailure(f"--{name}-axes takes some of the letters b, h, m and n, got {axes!r}")
    if not 2 <= rank <= 4:
        raise UsageFailure(f"--{name}-rank must be 2, 3 or 4, got {rank}")
    if rank < len(axes):
        raise UsageFailure(
            f"--{name}-rank {rank}: this {name} has the {len(axes)} axes {axes}", f"give --{name}-axes as well"
        )


def _check_seqlens(case: Case, seqlens: tuple[int, ...]) -> None:
    if len(seqlens) != case.batch:
        raise UsageFailure(f"--seqlens takes one length a batch: {case.batch} batches, got {len(seqlens)}")
    if case.seqlen_q != case.seqlen_k:
        raise UsageFailure("--seqlens (right padding) needs as many keys as query rows")
    if min(seqlens) < 0 or max(seqlens) > case.seqlen_q:
        raise UsageFailure(f"--seqlens must lie in 0 to {case.seqlen_q}, got {', '.join(map(str, seqlens))}")
