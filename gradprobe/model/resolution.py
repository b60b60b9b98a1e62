"""Resolution: a Case of the options that were given, or why there is none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from .architectures import ARCHITECTURES
from .assignment import PLAIN, in_words
from .case import (
    ALIGNMENTS,
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
# Of --repeat: what happens in a share p of n runs is seen in one of them with 1 - (1 - p)^n, which is
# 95 % for p = 3 / n. Without a bound a slip of the hand is a command that never ends.
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
_DTYPE_WORDS = {"fp16": "float16", "half": "float16"} | dict.fromkeys(
    ("fp32", "float", "single"), "float32"
)
SOFTMAX_ALONE = {
    "window", "softcap", "kv_heads", "head_dim_v", "align", "alibi", "sinks", "dropout", "cu_seqlens", "cu_seqlens_k",
    "bias_axes", "bias_rank", "mask", "mask_axes", "mask_rank", "mask_as", "window_as",
}  # fmt: skip
"""The options that the lazy family does not know."""
_COUNTS = (
    "batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "bias_window", "repeat",
)  # fmt: skip
Fault = tuple[str, str]
"""What is wrong, and a way out or ""."""


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
    _refuse(_foreign(given, family))
    if packs and "seqlens" in given:
        _refuse(_padding_faults(given))
        given["cu_seqlens"] = (0, *itertools.accumulate(given.pop("seqlens")))
    _refuse(_packing_faults(given))
    _refuse(_axis_faults(given))
    length = given.get("seqlen", max(given.get("seqlens") or (_default_length(given),)))
    given.setdefault("seqlen_q", length)
    given.setdefault("seqlen_k", given.get("seqlen", given["seqlen_q"]))
    given.setdefault("kv_heads", given.get("heads", Case.heads))
    if given.get("pattern") == "dyadic":
        given.setdefault("head_dim", 16)  # whose default scale is a power of two
    given.setdefault("head_dim_v", given.get("head_dim", Case.head_dim))
    given.setdefault("bias", family == "lazy" and takes_bias)
    if given.get("mask") == "padding":
        given.setdefault("mask_axes", "bn")
    _refuse(_number_faults(given))
    given.setdefault("scale", float(given.get("head_dim", Case.head_dim)) ** -0.5)
    given.setdefault("causal", family == "lazy" or "causal" in given.get("implied", ()))
    if family == "lazy":
        given["tau"] = _tau(given)
    known = {field.name for field in fields(Case)}
    case = Case(family=family, **{name: value for name, value in given.items() if name in known})
    refuse_unknown(vars(case))
    _refuse(_case_faults(case))
    return case


def _refuse(faults: Iterator[Fault]) -> None:
    for words, way_out in faults:
        raise UsageFailure(words, way_out)


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Refuses an option that takes one of several words and has another.

    Raises:
        UsageFailure: one has another, with the word that may be meant.
    """
    choices = CHOICES if options.get("inputs") is None else {**CHOICES, "mask": ("given",)}
    for name, known in choices.items():
        got = options.get(name)
        if got is not None and got not in known:
            way_out = did_you_mean(_DTYPE_WORDS.get(str(got).lower(), str(got)), known, "")
            raise UsageFailure(
                f"{flag_of(name)} must be one of {', '.join(known)}, got {got!r}", way_out
            )


def _default_length(given: Mapping[str, Any]) -> int:
    """The default, or the next length that can be cut in two for each rank."""
    parts = 2 * (given.get("ranks") or 1)
    return -(-Case.seqlen_q // parts) * parts


def _foreign(given: Mapping[str, Any], family: str) -> Iterator[Fault]:
    if family == "lazy" and given.get("causal") is False:
        yield "--no-causal: lazy attention is always causal", "drop --no-causal"
    foreign = SOFTMAX_ALONE if family == "lazy" else {"tau", "bias_window"}
    target = "of the softmax family" if family == "lazy" else "that takes tau"
    for name in sorted(foreign & given.keys()):
        words = f"{flag_of(name)}: the {family} family has no such option"
        yield words, f"drop it, or check a target {target}"


def _padding_faults(given: dict[str, Any]) -> Iterator[Fault]:
    """Of lengths that a target takes packed, end to end in one batch."""
    lengths = given["seqlens"]
    if given.pop("batch", len(lengths)) != len(lengths):
        yield f"--seqlens takes one length a batch, got {len(lengths)} and another --batch", ""
    if min(lengths) < 0:
        yield f"--seqlens must not be negative, got {', '.join(map(str, lengths))}", ""


def _packing_faults(given: dict[str, Any]) -> Iterator[Fault]:
    """Sets the lengths of packed sequences: one batch of all of them, end to end."""
    if "cu_seqlens" not in given:
        if "cu_seqlens_k" in given:
            way = "give --cu-seqlens, that of the query rows, too"
            yield "--cu-seqlens-k: nothing is packed", way
        return
    rows = given["cu_seqlens_q"] = given.pop("cu_seqlens")
    keys = given.setdefault("cu_seqlens_k", rows)
    if "seqlens" in given:
        yield "--seqlens pads and --cu-seqlens packs", "give one of them"
    for flag, ends, length in (
        ("--cu-seqlens", rows, "seqlen_q"),
        ("--cu-seqlens-k", keys, "seqlen_k"),
    ):
        rises = all(before <= after for before, after in itertools.pairwise(ends))
        if len(ends) < 2 or ends[0] != 0 or ends[-1] < 1 or not rises:
            got = ",".join(map(str, ends))
            way = "it holds where each sequence begins and where the last one ends: 0,37,101"
            yield f"{flag} must ascend from 0 to the number of rows, got {got}", way
        if given.setdefault(length, given.get("seqlen", ends[-1])) != ends[-1]:
            words = f"{flag} ends at {ends[-1]}, and the length is {given[length]}"
            yield words, "drop the length"
    if len(rows) != len(keys):
        counts = f"{len(rows) - 1} and {len(keys) - 1}"
        yield f"--cu-seqlens and --cu-seqlens-k must have as many sequences, got {counts}", ""
    if given.setdefault("batch", 1) != 1:
        words = f"--cu-seqlens packs all sequences into one batch, got --batch {given['batch']}"
        yield words, ""


def _axis_faults(given: dict[str, Any]) -> Iterator[Fault]:
    """Sets one batch, or one head, where shapes have no axis for more."""
    shapes = given.get("shapes", PLAIN)
    for letter, name in (("b", "batch"), ("h", "heads")):
        if letter not in shapes and given.setdefault(name, 1) != 1:
            words = f"{in_words(shapes)} holds one of --{name}, got {given[name]}"
            yield f"--shapes {shapes}: {words}", ""
    for name, way in (("bias", "add --bias"), ("mask", "add --mask KIND")):
        for option in (f"{name}_rank", f"{name}_axes"):
            if option in given and not given.get(name):
                yield f"{flag_of(option)}: this case has no {name}", way
    if given.get("mask") == "padding" and given.get("mask_axes", "bn") != "bn":
        yield f"--mask-axes {given['mask_axes']}: a padding mask has the axes bn", "drop it"


def _number_faults(given: Mapping[str, Any]) -> Iterator[Fault]:
    for name in _COUNTS:
        if given.get(name, 1) < 1:
            yield f"{flag_of(name)} must be at least 1, got {given[name]}", ""
    if given.get("repeat", 0) > MOST_RUNS:
        share = f"{MOST_RUNS} runs show with 95 % probability what happens in {3 / MOST_RUNS:.2%} of runs"
        yield f"--repeat must be at most {MOST_RUNS}, got {given['repeat']}", share
    for name in ("block_m", "block_n"):
        size = given.get(name, 16)
        if size < 16 or size & (size - 1):
            yield f"{flag_of(name)} must be a power of two of at least 16, got {size}", ""
    if "bias_window" in given and not given["bias"]:
        way = "drop it, or check a target that takes bias"
        yield "--bias-window: this case has no bias", way


def _tau(given: Mapping[str, Any]) -> tuple[float, ...]:
    heads = given.get("heads", Case.heads)
    # Both signs, none of which puts a whole row on the ReLU's kink, where little could be compared.
    known = (
        (-DYADIC_TAU, DYADIC_TAU) if given.get("pattern") == "dyadic" else (-0.5, 0.5, -3.0, 1.0)
    )
    tau = tuple(given.get("tau") or (known[h % len(known)] for h in range(heads)))
    tau = tau * heads if len(tau) == 1 else tau
    if len(tau) != heads:
        words = f"{heads} heads, got {len(tau)} numbers"
        raise UsageFailure(f"--tau takes one number, or one a head: {words}")
    return tau


def _case_faults(case: Case) -> Iterator[Fault]:
    for name in ("q", "k", "v", "do"):
        count = math.prod(map(case.size, case.input_axes(name)))
        if count > LARGEST:  # which no machine's memory holds
            words = f"{name} of this case would have {count:.1e} elements"
            yield f"{words}, more than {LARGEST:.1e}", ""
    lengths, heads = f"{case.seqlen_q} and {case.seqlen_k}", f"{case.kv_heads} and {case.heads}"
    if case.heads % case.kv_heads:
        yield f"--kv-heads must divide --heads, got {heads}", ""
    if case.family == "lazy" and case.seqlen_q != case.seqlen_k:
        yield f"lazy attention needs as many keys as rows, got {lengths}", ""
    yield from _length_faults(case, case.seqlens) if case.seqlens is not None else ()
    if not 0 <= case.seed < 2**63:
        yield f"--seed must lie in 0 to 2^63 - 1, got {case.seed}", ""
    if case.window is not None and min(case.window) < -1:
        got = ",".join(map(str, case.window))
        yield f"--window takes numbers of keys, -1 for no limit, got {got}", ""
    if not 0 <= case.dropout < 1:
        yield f"--dropout must lie in 0 to 1, 1 excluded, got {case.dropout}", ""
    yield from _letter_faults(case, "bias")
    yield from _letter_faults(case, "mask")
    if case.mask in ("random", "dead-rows") and not {"m", "n"} <= set(case.mask_axes):
        yield f"--mask-axes: a {case.mask} mask has m and n, got {case.mask_axes!r}", ""
    yield from _magnitude_faults(case)
    if case.ranks is None and case.shards != Case.shards:
        yield f"--shards {case.shards}: nothing is divided among ranks", "add --ranks N"


def _length_faults(case: Case, seqlens: tuple[int, ...]) -> Iterator[Fault]:
    if len(seqlens) != case.batch:
        words = f"{case.batch} batches, got {len(seqlens)}"
        yield f"--seqlens takes one length a batch: {words}", ""
    if case.seqlen_q != case.seqlen_k:
        yield "--seqlens (right padding) needs as many keys as query rows", ""
    if min(seqlens) < 0 or max(seqlens) > case.seqlen_q:
        got = ", ".join(map(str, seqlens))
        yield f"--seqlens must lie in 0 to {case.seqlen_q}, got {got}", ""


def _letter_faults(case: Case, name: str) -> Iterator[Fault]:
    axes, rank = getattr(case, f"{name}_axes"), getattr(case, f"{name}_rank")
    if not (axes or case.inputs) or set(axes) - set("bhmn") or len(set(axes)) < len(axes):
        yield f"--{name}-axes takes some of the letters b, h, m and n, got {axes!r}", ""
    if not 2 <= rank <= 4:
        yield f"--{name}-rank must be 2, 3 or 4, got {rank}", ""
    if rank < len(axes):
        words = f"--{name}-rank {rank}: this {name} has the {len(axes)} axes {axes}"
        yield words, f"give --{name}-axes as well"


def _magnitude_faults(case: Case) -> Iterator[Fault]:
    """Of numbers so large or small that float32 overflows or underflows in a right kernel."""
    if case.softcap is not None and not case.softcap > 0:
        yield f"--softcap must be above 0, got {case.softcap}", ""
    if case.softcap == math.inf:
        yield "--softcap must be finite, got inf", "drop it: no softcap is none"
    if not all(math.isfinite(number) for number in (case.scale, *(case.tau or ()))):
        yield "--scale and --tau must be finite numbers", ""
    numbers = [("scale", case.scale, MOST), ("softcap", case.softcap or 0.0, MOST_SOFTCAP)]
    numbers += [("tau", tau, MOST) for tau in case.tau or ()]
    for name, number, most in numbers:
        if abs(number) > most:
            why = "a right kernel overflows there: nothing could be told from that"
            yield f"--{name} must be at most {most:.3g} in magnitude, got {number:g}", why
        if name != "tau" and 0 < abs(number) < LEAST_NORMAL:
            why = "a right kernel, which holds it in float32, takes what is smaller for 0"
            yield (
                f"--{name} must be at least {LEAST_NORMAL:.3g} in magnitude, got {number:g}",
                why,
            )
