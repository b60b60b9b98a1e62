"""A Case of the options that were given, or why there is none."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from .assignment import PLAIN, in_words
from .case import (
    ALIGNMENTS,
    ARCHITECTURES,
    DEVICES,
    DOTS,
    DTYPES,
    DYADIC_TAU,
    LSE_FORMS,
    MASK_FORMS,
    MASKS,
    PATTERNS,
    WINDOW_FORMS,
    Case,
    flag_of,
)
from .failures import did_you_mean, refuse_if

# Elements of one tensor: 64 GiB in float32, and every run holds dozens.
_LARGEST = 2**34
# Of --repeat: what happens in a share p of n runs is seen in one of them with 1 - (1 - p)^n, 95 % for p = 3 / n.
_MOST_RUNS = 10_000
# Of --scale and --tau, the largest number of float16: some kernels hold q * scale in q's dtype, and P, which grows with
# tau. P = exp(S - LSE) overflows by the rounding of S alone, 2^-11 of it in TF32, where S is beyond 2^18.
_MOST = 65504.0
# Of --softcap, the largest number of float32.
_MOST_SOFTCAP = (2 - 2.0**-23) * 2.0**127
# What is smaller has no reciprocal in float32, and GPUs take it for 0.
_LEAST_NORMAL = 2.0**-126
# The options that take one of several words.
_CHOICES = {
    "dtype": DTYPES, "pattern": PATTERNS, "dots": DOTS, "device": DEVICES, "align": ALIGNMENTS, "mask": MASKS,
    "arch": tuple(ARCHITECTURES), "window_as": WINDOW_FORMS, "mask_as": MASK_FORMS, "lse_as": LSE_FORMS,
}  # fmt: skip
SOFTMAX_ALONE = {
    "window", "softcap", "kv_heads", "head_dim_v", "align", "alibi", "sinks", "dropout", "cu_seqlens", "cu_seqlens_k",
    "bias_axes", "bias_rank", "mask", "mask_axes", "mask_rank", "mask_as", "window_as",
}  # fmt: skip
_COUNTS = (
    "batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "bias_window", "repeat",
)  # fmt: skip


def resolve(
    options: Mapping[str, Any], family: str, *, takes_bias: bool, packs: bool = False
) -> Case:
    """The options (None or absent: not given), with the family's defaults.

    Args:
        takes_bias: whether the target takes a bias, which a lazy case then has by default.
        packs: whether it takes its sequences packed, so that `seqlens` means that.

    Raises:
        UsageFailure: a value that no case can have, or that the family does not know.
    """
    given = {name: value for name, value in options.items() if value is not None}
    _refuse_foreign(given, family)
    if packs and "seqlens" in given:
        lengths = given.pop("seqlens")
        _refuse_lengths(lengths, given.pop("batch", len(lengths)), None)
        given["cu_seqlens"] = (0, *itertools.accumulate(lengths))
    _pack(given)
    _set_axes(given)
    parts = 2 * (given.get("ranks") or 1)
    length = max(given.get("seqlens") or (-(-Case.seqlen_q // parts) * parts,))
    is_dyadic = given.get("pattern") == "dyadic"
    if is_dyadic:
        given.setdefault("head_dim", 16)
    if given.get("mask") == "padding":
        given.setdefault("mask_axes", "bn")
    given.setdefault("seqlen_q", given.get("seqlen", length))
    given.setdefault("seqlen_k", given.get("seqlen", given["seqlen_q"]))
    given.setdefault("kv_heads", given.get("heads", Case.heads))
    given.setdefault("head_dim_v", given.get("head_dim", Case.head_dim))
    given.setdefault("bias", family == "lazy" and takes_bias)
    _refuse_counts(given)
    given.setdefault("scale", float(given.get("head_dim", Case.head_dim)) ** -0.5)
    given.setdefault("causal", family == "lazy" or "causal" in given.get("implied", ()))
    if family == "lazy":
        given["tau"] = _tau(given.get("tau"), given.get("heads", Case.heads), is_dyadic)
    known = {field.name for field in fields(Case)}
    case = Case(family=family, **{name: value for name, value in given.items() if name in known})
    refuse_unknown(vars(case))
    _refuse_case(case)
    return case


def _must(is_right: bool, rule: str, got: object, way_out: str = "") -> None:
    refuse_if(not is_right, f"{rule}, got {got}", way_out)


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raises UsageFailure."""
    choices = _CHOICES if options.get("inputs") is None else {**_CHOICES, "mask": ("given",)}
    for name, known in choices.items():
        got = options.get(name)
        if got is not None and got not in known:
            meant = did_you_mean(str(got).lower().replace("fp", "float"), known, "")
            _must(False, f"{flag_of(name)} must be one of {', '.join(known)}", repr(got), meant)


def _refuse_foreign(given: Mapping[str, Any], family: str) -> None:
    is_lazy = family == "lazy"
    words = "--no-causal: lazy attention is always causal"
    refuse_if(is_lazy and given.get("causal") is False, words, "drop --no-causal")
    target = "of the softmax family" if is_lazy else "that takes tau"
    for name in sorted((SOFTMAX_ALONE if is_lazy else {"tau", "bias_window"}) & given.keys()):
        words = f"{flag_of(name)}: the {family} family has no such option"
        refuse_if(True, words, f"drop it, or check a target {target}")


def _pack(given: dict[str, Any]) -> None:
    if "cu_seqlens" not in given:
        way = "give --cu-seqlens, that of the query rows, too"
        refuse_if("cu_seqlens_k" in given, "--cu-seqlens-k: nothing is packed", way)
        return
    words = "--seqlens pads and --cu-seqlens packs"
    refuse_if("seqlens" in given, words, "give one of them")
    rows = given["cu_seqlens_q"] = given.pop("cu_seqlens")
    keys = given.setdefault("cu_seqlens_k", rows)
    lengths = (("--cu-seqlens", rows, "seqlen_q"), ("--cu-seqlens-k", keys, "seqlen_k"))
    for flag, ends, length in lengths:
        rises = [*ends] == sorted(ends) and len(ends) > 1 and ends[0] == 0 < ends[-1]
        way = "such as 0,37,101"
        rule = f"{flag} must ascend from 0 to the number of rows"
        _must(rises, rule, ",".join(map(str, ends)), way)
        other = given.setdefault(length, given.get("seqlen", ends[-1]))
        words = f"{flag} ends at {ends[-1]}, and the length is {other}"
        refuse_if(other != ends[-1], words, "drop the length")
    rule = "--cu-seqlens and --cu-seqlens-k must have as many sequences"
    _must(len(rows) == len(keys), rule, f"{len(rows) - 1} and {len(keys) - 1}")
    batch = given.setdefault("batch", 1)
    _must(batch == 1, "--cu-seqlens packs all sequences into one batch", f"--batch {batch}")


def _set_axes(given: dict[str, Any]) -> None:
    shapes = given.get("shapes", PLAIN)
    for letter, name in (("b", "batch"), ("h", "heads")):
        if letter not in shapes:
            count = given.setdefault(name, 1)
            rule = f"--shapes {shapes}: {in_words(shapes)} holds one of --{name}"
            _must(count == 1, rule, count)
    for name, way in (("bias", "add --bias"), ("mask", "add --mask KIND")):
        for option in (f"{name}_rank", f"{name}_axes"):
            is_idle = option in given and not given.get(name)
            refuse_if(is_idle, f"{flag_of(option)}: this case has no {name}", way)


def _refuse_counts(given: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        count = given.get(name, 1)
        _must(count >= 1, f"{flag_of(name)} must be at least 1", count)
    repeat = given.get("repeat", 1)
    _must(repeat <= _MOST_RUNS, f"--repeat must be at most {_MOST_RUNS}", repeat)
    for name in ("block_m", "block_n"):
        size, rule = given.get(name, 16), "must be a power of two of at least 16"
        _must(size >= 16 and size & (size - 1) == 0, f"{flag_of(name)} {rule}", size)
    is_idle = "bias_window" in given and not given["bias"]
    way = "drop it, or check a target that takes bias"
    refuse_if(is_idle, "--bias-window: this case has no bias", way)


def _tau(given: Sequence[float] | None, heads: int, is_dyadic: bool) -> tuple[float, ...]:
    # Both signs, none of which puts a whole row on the ReLU's kink, where little could be compared.
    known = (-DYADIC_TAU, DYADIC_TAU) if is_dyadic else (-0.5, 0.5, -3.0, 1.0)
    tau = tuple(given or (known[h % len(known)] for h in range(heads)))
    tau = tau * heads if len(tau) == 1 else tau
    rule = f"--tau takes one number, or one a head: {heads} heads"
    _must(len(tau) == heads, rule, f"{len(tau)} numbers")
    return tau


def _refuse_case(case: Case) -> None:
    rows, keys, heads = case.seqlen_q, case.seqlen_k, f"{case.kv_heads} and {case.heads}"
    for name in ("q", "k", "v", "do"):
        count = math.prod(map(case.size, case.input_axes(name)))
        words = f"{name} would have {count:.1e} elements, more than {_LARGEST:.1e}"
        refuse_if(count > _LARGEST, words)
    _must(case.heads % case.kv_heads == 0, "--kv-heads must divide --heads", heads)
    is_square, rule = rows == keys, "lazy attention needs as many keys as rows"
    _must(is_square or case.family != "lazy", rule, f"{rows} and {keys}")
    if case.seqlens is not None:
        _refuse_lengths(case.seqlens, case.batch, rows)
        words = "--seqlens (right padding) needs as many keys as query rows"
        refuse_if(not is_square, words)
    _must(0 <= case.seed < 2**63, "--seed must lie in 0 to 2^63 - 1", case.seed)
    left, right = case.window or (-1, -1)
    rule = "--window takes numbers of keys, -1 for no limit"
    _must(min(left, right) >= -1, rule, f"{left},{right}")
    _must(0 <= case.dropout < 1, "--dropout must lie in 0 to 1, 1 excluded", case.dropout)
    _refuse_axes(case, "bias")
    _refuse_axes(case, "mask")
    _refuse_magnitudes(case)
    words = f"--shards {case.shards}: nothing is divided among ranks"
    refuse_if(case.ranks is None and case.shards != Case.shards, words, "add --ranks N")


def _refuse_lengths(seqlens: tuple[int, ...], batch: int, most: int | None) -> None:
    rule = f"--seqlens takes one length a batch: {batch} batches"
    _must(len(seqlens) == batch, rule, len(seqlens))
    span = "must not be negative" if most is None else f"must lie in 0 to {most}"
    fits = min(seqlens) >= 0 and (most is None or max(seqlens) <= most)
    _must(fits, f"--seqlens {span}", ", ".join(map(str, seqlens)))


def _refuse_axes(case: Case, name: str) -> None:
    axes, rank = getattr(case, f"{name}_axes"), getattr(case, f"{name}_rank")
    is_known = bool(axes or case.inputs) and set(axes) <= set("bhmn")
    rule = f"--{name}-axes takes some of the letters b, h, m and n"
    _must(is_known and len(set(axes)) == len(axes), rule, repr(axes))
    _must(2 <= rank <= 4, f"--{name}-rank must be 2, 3 or 4", rank)
    words = f"--{name}-rank {rank}: this {name} has the {len(axes)} axes {axes}"
    refuse_if(rank < len(axes), words, f"give --{name}-axes as well")
    if name == "mask" and case.mask in MASKS:
        is_padding = case.mask == "padding"
        fits = {*axes} == {*"bn"} if is_padding else {*axes} >= {*"mn"}
        needs = "the axes bn" if is_padding else "m and n"
        _must(fits, f"--mask-axes: a {case.mask} mask has {needs}", repr(axes))


def _refuse_magnitudes(case: Case) -> None:
    """With which float32 overflows or underflows in a right kernel."""
    cap, taus = case.softcap, case.tau or ()
    _must(cap is None or cap > 0, "--softcap must be above 0", cap)
    _must(cap != math.inf, "--softcap must be finite", cap, "drop it: no softcap is none")
    is_finite = all(map(math.isfinite, (case.scale, *taus)))
    refuse_if(not is_finite, "--scale and --tau must be finite numbers")
    numbers = [("scale", case.scale, _MOST), ("softcap", cap or 0.0, _MOST_SOFTCAP)]
    for name, number, most in [*numbers, *(("tau", tau, _MOST) for tau in taus)]:
        rule, size, got = f"--{name} must be at", abs(number), f"{number:g}"
        why = "a right kernel overflows there"
        _must(size <= most, f"{rule} most {most:.3g} in magnitude", got, why)
        is_normal = name == "tau" or size == 0 or size >= _LEAST_NORMAL
        why = "a right kernel takes what is smaller for 0"
        _must(is_normal, f"{rule} least {_LEAST_NORMAL:.3g} in magnitude", got, why)
