"""Resolution: a Case of the options that were given, or why there is none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
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
from .failures import UsageFailure, did_you_mean

# Elements of one tensor: 64 GiB in float32, and every run holds dozens.
LARGEST = 2**34
# Of --repeat: what happens in a share p of n runs is seen in one of them with 1 - (1 - p)^n, 95 % for p = 3 / n.
MOST_RUNS = 10_000
# Of --scale and --tau, the largest number of float16: some kernels hold q * scale in q's dtype, and P, which grows with
# tau. P = exp(S - LSE) overflows by the rounding of S alone, 2^-11 of it in TF32, where S is beyond 2^18.
MOST = 65504.0
# Of --softcap, the largest number of float32.
MOST_SOFTCAP = (2 - 2.0**-23) * 2.0**127
# What is smaller has no reciprocal in float32, and GPUs take it for 0.
LEAST_NORMAL = 2.0**-126
# The options that take one of several words.
CHOICES = {
    "dtype": DTYPES, "pattern": PATTERNS, "dots": DOTS, "device": DEVICES, "align": ALIGNMENTS, "mask": MASKS,
    "arch": tuple(ARCHITECTURES), "window_as": WINDOW_FORMS, "mask_as": MASK_FORMS, "lse_as": LSE_FORMS,
}  # fmt: skip
SOFTMAX_ALONE = {
    "window", "softcap", "kv_heads", "head_dim_v", "align", "alibi", "sinks", "dropout", "cu_seqlens", "cu_seqlens_k",
    "bias_axes", "bias_rank", "mask", "mask_axes", "mask_rank", "mask_as", "window_as",
}  # fmt: skip
"""The options that the lazy family does not know."""
_COUNTS = (
    "batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "bias_window", "repeat",
)  # fmt: skip


def resolve(
    options: Mapping[str, Any], family: str, *, takes_bias: bool, packs: bool = False
) -> Case:
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
        lengths = given.pop("seqlens")
        batch = given.pop("batch", len(lengths))
        _refuse_lengths(lengths, batch, None)
        given["cu_seqlens"] = (0, *itertools.accumulate(lengths))
    _pack(given)
    _set_axes(given)
    parts = 2 * (given.get("ranks") or 1)  # into which a default length can be cut
    length = max(given.get("seqlens") or (-(-Case.seqlen_q // parts) * parts,))
    length = given.get("seqlen", length)
    given.setdefault("seqlen_q", length)
    given.setdefault("seqlen_k", given.get("seqlen", given["seqlen_q"]))
    given.setdefault("kv_heads", given.get("heads", Case.heads))
    if given.get("pattern") == "dyadic":
        given.setdefault("head_dim", 16)  # whose default scale is a power of two
    given.setdefault("head_dim_v", given.get("head_dim", Case.head_dim))
    given.setdefault("bias", family == "lazy" and takes_bias)
    if given.get("mask") == "padding":
        given.setdefault("mask_axes", "bn")
    _refuse_counts(given)
    given.setdefault("scale", float(given.get("head_dim", Case.head_dim)) ** -0.5)
    given.setdefault("causal", family == "lazy" or "causal" in given.get("implied", ()))
    if family == "lazy":
        given["tau"] = _tau(given)
    known = {field.name for field in fields(Case)}
    case = Case(family=family, **{name: value for name, value in given.items() if name in known})
    refuse_unknown(vars(case))
    _refuse_case(case)
    return case


def _refuse_if(is_wrong: bool, words: str, way_out: str = "") -> None:
    if is_wrong:
        raise UsageFailure(words, way_out)


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raises UsageFailure where an option that takes one of several words has another."""
    choices = CHOICES if options.get("inputs") is None else {**CHOICES, "mask": ("given",)}
    for name, known in choices.items():
        got = options.get(name)
        if got is not None and got not in known:
            words = f"{flag_of(name)} must be one of {', '.join(known)}, got {got!r}"
            spelt = str(got).lower().replace("fp", "float")
            raise UsageFailure(words, did_you_mean(spelt, known, ""))


def _refuse_foreign(given: Mapping[str, Any], family: str) -> None:
    is_lazy = family == "lazy"
    words = "--no-causal: lazy attention is always causal"
    _refuse_if(is_lazy and given.get("causal") is False, words, "drop --no-causal")
    foreign = (SOFTMAX_ALONE if is_lazy else {"tau", "bias_window"}) & given.keys()
    target = "of the softmax family" if is_lazy else "that takes tau"
    for name in sorted(foreign):
        words = f"{flag_of(name)}: the {family} family has no such option"
        raise UsageFailure(words, f"drop it, or check a target {target}")


def _pack(given: dict[str, Any]) -> None:
    """Sets the lengths of packed sequences: one batch of all of them, end to end."""
    if "cu_seqlens" not in given:
        way = "give --cu-seqlens, that of the query rows, too"
        _refuse_if("cu_seqlens_k" in given, "--cu-seqlens-k: nothing is packed", way)
        return
    rows = given["cu_seqlens_q"] = given.pop("cu_seqlens")
    keys = given.setdefault("cu_seqlens_k", rows)
    words = "--seqlens pads and --cu-seqlens packs"
    _refuse_if("seqlens" in given, words, "give one of them")
    for flag, ends, length in (
        ("--cu-seqlens", rows, "seqlen_q"),
        ("--cu-seqlens-k", keys, "seqlen_k"),
    ):
        rises = all(before <= after for before, after in itertools.pairwise(ends))
        if len(ends) < 2 or ends[0] != 0 or ends[-1] < 1 or not rises:
            got = ",".join(map(str, ends))
            words = f"{flag} must ascend from 0 to the number of rows, got {got}"
            way = "it holds where each sequence begins and where the last one ends: 0,37,101"
            raise UsageFailure(words, way)
        other = given.setdefault(length, given.get("seqlen", ends[-1]))
        words = f"{flag} ends at {ends[-1]}, and the length is {other}"
        _refuse_if(other != ends[-1], words, "drop the length")
    counts = f"{len(rows) - 1} and {len(keys) - 1}"
    words = f"--cu-seqlens and --cu-seqlens-k must have as many sequences, got {counts}"
    _refuse_if(len(rows) != len(keys), words)
    batch = given.setdefault("batch", 1)
    words = f"--cu-seqlens packs all sequences into one batch, got --batch {batch}"
    _refuse_if(batch != 1, words)


def _set_axes(given: dict[str, Any]) -> None:
    """Sets one batch, or one head, where shapes have no axis for more."""
    shapes = given.get("shapes", PLAIN)
    for letter, name in (("b", "batch"), ("h", "heads")):
        if letter not in shapes and given.setdefault(name, 1) != 1:
            words = f"{in_words(shapes)} holds one of --{name}, got {given[name]}"
            raise UsageFailure(f"--shapes {shapes}: {words}")
    for name, way in (("bias", "add --bias"), ("mask", "add --mask KIND")):
        for option in (f"{name}_rank", f"{name}_axes"):
            is_idle = option in given and not given.get(name)
            _refuse_if(is_idle, f"{flag_of(option)}: this case has no {name}", way)
    axes = given.get("mask_axes", "bn")
    words = f"--mask-axes {axes}: a padding mask has the axes bn"
    _refuse_if(given.get("mask") == "padding" and axes != "bn", words, "drop it")


def _refuse_counts(given: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        count = given.get(name, 1)
        _refuse_if(count < 1, f"{flag_of(name)} must be at least 1, got {count}")
    words = f"--repeat must be at most {MOST_RUNS}, got {given.get('repeat')}"
    share = (
        f"{MOST_RUNS} runs show with 95 % probability what happens in {3 / MOST_RUNS:.2%} of runs"
    )
    _refuse_if(given.get("repeat", 0) > MOST_RUNS, words, share)
    for name in ("block_m", "block_n"):
        size = given.get(name, 16)
        words = f"{flag_of(name)} must be a power of two of at least 16, got {size}"
        _refuse_if(size < 16 or size & (size - 1) != 0, words)
    way = "drop it, or check a target that takes bias"
    is_idle = "bias_window" in given and not given["bias"]
    _refuse_if(is_idle, "--bias-window: this case has no bias", way)


def _tau(given: Mapping[str, Any]) -> tuple[float, ...]:
    heads = given.get("heads", Case.heads)
    # Both signs, none of which puts a whole row on the ReLU's kink, where little could be compared.
    is_dyadic = given.get("pattern") == "dyadic"
    known = (-DYADIC_TAU, DYADIC_TAU) if is_dyadic else (-0.5, 0.5, -3.0, 1.0)
    tau = tuple(given.get("tau") or (known[h % len(known)] for h in range(heads)))
    tau = tau * heads if len(tau) == 1 else tau
    words = f"--tau takes one number, or one a head: {heads} heads, got {len(tau)} numbers"
    _refuse_if(len(tau) != heads, words)
    return tau


def _refuse_case(case: Case) -> None:
    for name in ("q", "k", "v", "do"):
        count = math.prod(map(case.size, case.input_axes(name)))
        words = f"{name} of this case would have {count:.1e} elements, more than {LARGEST:.1e}"
        _refuse_if(count > LARGEST, words)
    heads = f"{case.kv_heads} and {case.heads}"
    _refuse_if(case.heads % case.kv_heads != 0, f"--kv-heads must divide --heads, got {heads}")
    is_square, lengths = case.seqlen_q == case.seqlen_k, f"{case.seqlen_q} and {case.seqlen_k}"
    words = f"lazy attention needs as many keys as rows, got {lengths}"
    _refuse_if(case.family == "lazy" and not is_square, words)
    if case.seqlens is not None:
        _refuse_lengths(case.seqlens, case.batch, case.seqlen_q)
        words = "--seqlens (right padding) needs as many keys as query rows"
        _refuse_if(not is_square, words)
    words = f"--seed must lie in 0 to 2^63 - 1, got {case.seed}"
    _refuse_if(not 0 <= case.seed < 2**63, words)
    window = case.window or (-1, -1)
    words = f"--window takes numbers of keys, -1 for no limit, got {window[0]},{window[1]}"
    _refuse_if(min(window) < -1, words)
    words = f"--dropout must lie in 0 to 1, 1 excluded, got {case.dropout}"
    _refuse_if(not 0 <= case.dropout < 1, words)
    _refuse_axes(case, "bias")
    _refuse_axes(case, "mask")
    words = f"--mask-axes: a {case.mask} mask has m and n, got {case.mask_axes!r}"
    lacks = not {"m", "n"} <= set(case.mask_axes)
    _refuse_if(case.mask in ("random", "dead-rows") and lacks, words)
    _refuse_magnitudes(case)
    words = f"--shards {case.shards}: nothing is divided among ranks"
    _refuse_if(case.ranks is None and case.shards != Case.shards, words, "add --ranks N")


def _refuse_lengths(seqlens: tuple[int, ...], batch: int, most: int | None) -> None:
    words = f"--seqlens takes one length a batch: {batch} batches, got {len(seqlens)}"
    _refuse_if(len(seqlens) != batch, words)
    span = "must not be negative" if most is None else f"must lie in 0 to {most}"
    words = f"--seqlens {span}, got {', '.join(map(str, seqlens))}"
    _refuse_if(min(seqlens) < 0 or (most is not None and max(seqlens) > most), words)


def _refuse_axes(case: Case, name: str) -> None:
    axes, rank = getattr(case, f"{name}_axes"), getattr(case, f"{name}_rank")
    is_wrong = not (axes or case.inputs) or set(axes) - set("bhmn") or len(set(axes)) < len(axes)
    words = f"--{name}-axes takes some of the letters b, h, m and n, got {axes!r}"
    _refuse_if(bool(is_wrong), words)
    _refuse_if(not 2 <= rank <= 4, f"--{name}-rank must be 2, 3 or 4, got {rank}")
    words = f"--{name}-rank {rank}: this {name} has the {len(axes)} axes {axes}"
    _refuse_if(rank < len(axes), words, f"give --{name}-axes as well")


def _refuse_magnitudes(case: Case) -> None:
    """Refuses numbers so large or small that float32 overflows or underflows in a right kernel."""
    cap, taus = case.softcap, case.tau or ()
    _refuse_if(cap is not None and not cap > 0, f"--softcap must be above 0, got {cap}")
    way = "drop it: no softcap is none"
    _refuse_if(cap == math.inf, "--softcap must be finite, got inf", way)
    is_finite = all(map(math.isfinite, (case.scale, *taus)))
    _refuse_if(not is_finite, "--scale and --tau must be finite numbers")
    numbers = [("scale", case.scale, MOST), ("softcap", cap or 0.0, MOST_SOFTCAP)]
    for name, number, most in [*numbers, *(("tau", tau, MOST) for tau in taus)]:
        words = f"--{name} must be at most {most:.3g} in magnitude, got {number:g}"
        why = "a right kernel overflows there: nothing could be told from that"
        _refuse_if(abs(number) > most, words, why)
        words = f"--{name} must be at least {LEAST_NORMAL:.3g} in magnitude, got {number:g}"
        why = "a right kernel, which holds it in float32, takes what is smaller for 0"
        _refuse_if(name != "tau" and 0 < abs(number) < LEAST_NORMAL, words, why)
