"""Resolution: a Case of the options that were given, or why there is none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
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
OVERFLOWS = "a right kernel overflows there: nothing could be told from that"
UNDERFLOWS = "a right kernel, which holds it in float32, takes what is smaller for 0"
# The options that take one of several words.
CHOICES = {"dtype": DTYPES, "pattern": PATTERNS, "dots": DOTS, "device": DEVICES}
CHOICES |= {"align": ALIGNMENTS, "mask": MASKS}
CHOICES |= {
    "arch": tuple(ARCHITECTURES),
    "window_as": WINDOW_FORMS,
    "mask_as": MASK_FORMS,
    "lse_as": LSE_FORMS,
}


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
        _end_to_end(given)
    _pack(given)
    _leave_out(given)
    given.setdefault(
        "seqlen_q", given.get("seqlen", max(given.get("seqlens") or (_default_length(given),)))
    )
    given.setdefault("seqlen_k", given.get("seqlen", given["seqlen_q"]))
    given.setdefault("kv_heads", given.get("heads", Case.heads))
    if given.get("pattern") == "dyadic":
        given.setdefault("head_dim", 16)  # whose default scale is a power of two
    given.setdefault("head_dim_v", given.get("head_dim", Case.head_dim))
    _check_counts(given)
    given.setdefault("scale", float(given.get("head_dim", Case.head_dim)) ** -0.5)
    given.setdefault("bias", family == "lazy" and takes_bias)
    if "bias_window" in given and not given["bias"]:
        raise UsageFailure(
            "--bias-window: this case has no bias", "drop it, or check a target that takes bias"
        )
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
        raise UsageFailure(
            f"--mask-axes {given['mask_axes']}: a padding mask has the axes bn", "drop it"
        )


def _end_to_end(given: dict[str, Any]) -> None:
    """Turns sequence lengths into packed sequences, end to end in one batch, for a target that packs."""
    lengths = given.pop("seqlens")
    if given.pop("batch", len(lengths)) != len(lengths):
        raise UsageFailure(
            f"--seqlens takes one length a batch, got {len(lengths)} and another --batch"
        )
    if min(lengths) < 0:
        raise UsageFailure(f"--seqlens must not be negative, got {', '.join(map(str, lengths))}")
    given["cu_seqlens"] = (0, *itertools.accumulate(lengths))


def _pack(given: dict[str, Any]) -> None:
    """Packed sequences set the lengths: one batch of all of them, end to end."""
    if "cu_seqlens" not in given:
        if "cu_seqlens_k" in given:
            raise UsageFailure(
                "--cu-seqlens-k: nothing is packed",
                "give --cu-seqlens, that of the query rows, too",
            )
        return
    given["cu_seqlens_q"] = given.pop("cu_seqlens")
    given.setdefault("cu_seqlens_k", given["cu_seqlens_q"])
    if "seqlens" in given:
        raise UsageFailure("--seqlens pads and --cu-seqlens packs", "give one of them")
    rows, keys = (
        ("--cu-seqlens", "cu_seqlens_q", "seqlen_q"),
        ("--cu-seqlens-k", "cu_seqlens_k", "seqlen_k"),
    )
    for flag, name, length in (rows, keys):
        _check_ascends(flag, given[name])
        if given.setdefault(length, given.get("seqlen", given[name][-1])) != given[name][-1]:
            raise UsageFailure(
                f"{flag} ends at {given[name][-1]}, and the length is {given[length]}",
                "drop the length",
            )
    if len(given["cu_seqlens_q"]) != len(given["cu_seqlens_k"]):
        count = f"{len(given['cu_seqlens_q']) - 1} and {len(given['cu_seqlens_k']) - 1}"
        raise UsageFailure(
            f"--cu-seqlens and --cu-seqlens-k must have as many sequences, got {count}"
        )
    if given.setdefault("batch", 1) != 1:
        raise UsageFailure(
            f"--cu-seqlens packs all sequences into one batch, got --batch {given['batch']}"
        )


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
            raise UsageFailure(
                f"--shapes {shapes}: {in_words(shapes)} holds one of --{name}, got {given[name]}"
            )


SOFTMAX_ALONE = {
    "window",
    "softcap",
    "kv_heads",
    "head_dim_v",
    "align",
    "alibi",
    "sinks",
    "dropout",
    "cu_seqlens",
}
SOFTMAX_ALONE |= {
    "cu_seqlens_k",
    "bias_axes",
    "bias_rank",
    "mask",
    "mask_axes",
    "mask_rank",
    "mask_as",
    "window_as",
}
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
        raise UsageFailure(
            f"{flag_of(min(foreign))}: the {family} family has no such option", way_out
        )


def _check_counts(given: Mapping[str, Any]) -> None:
    counts = (
        "batch",
        "heads",
        "kv_heads",
        "seqlen_q",
        "seqlen_k",
        "head_dim",
        "head_dim_v",
        "bias_window",
        "repeat",
    )
    for name in counts:
        if name in given and given[name] < 1:
            raise UsageFailure(f"{flag_of(name)} must be at least 1, got {given[name]}")
    if given.get("repeat", 0) > MOST_RUNS:
        raise UsageFailure(
            f"--repeat must be at most {MOST_RUNS}, got {given['repeat']}",
            f"{MOST_RUNS} runs show with 95 % probability what happens in {3 / MOST_RUNS:.2%} of runs",
        )
    for name in ("block_m", "block_n"):
        value = given.get(name, 16)
        if value < 16 or value & (value - 1):
            raise UsageFailure(
                f"{flag_of(name)} must be a power of two of at least 16, got {value}"
            )


def _tau(given: Mapping[str, Any]) -> tuple[float, ...]:
    heads = given.get("heads", Case.heads)
    # Both signs, none of which puts a whole row on the ReLU's kink, where little could be compared.
    known = (
        (-DYADIC_TAU, DYADIC_TAU) if given.get("pattern") == "dyadic" else (-0.5, 0.5, -3.0, 1.0)
    )
    tau = tuple(given.get("tau") or (known[h % len(known)] for h in range(heads)))
    tau = tau * heads if len(tau) == 1 else tau
    if len(tau) != heads:
        raise UsageFailure(
            f"--tau takes one number, or one a head: {heads} heads, got {len(tau)} numbers"
        )
    return tau


_WRITTEN_OUT = {
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "single": "float32",
}


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Refuses an option that takes one of several words and has another.

    Raises:
        UsageFailure: one has another, with the word that may be meant.
    """
    choices = CHOICES if options.get("inputs") is None else {**CHOICES, "mask": ("given",)}
    for name, known in choices.items():
        got = options.get(name)
        if got is not None and got not in known:
            way_out = did_you_mean(_WRITTEN_OUT.get(str(got).lower(), str(got)), known, "")
            raise UsageFailure(
                f"{flag_of(name)} must be one of {', '.join(known)}, got {got!r}", way_out
            )


def _check(case: Case) -> None:
    for name in ("q", "k", "v", "do"):
        count = math.prod(map(case.size, case.input_axes(name)))
        if count > LARGEST:  # which no machine's memory holds
            raise UsageFailure(
                f"{name} of this case would have {count:.1e} elements, more than {LARGEST:.1e}"
            )
    refuse_unknown(vars(case))
    if case.heads % case.kv_heads:
        raise UsageFailure(
            f"--kv-heads must divide --heads, got {case.kv_heads} and {case.heads}"
        )
    if case.family == "lazy" and case.seqlen_q != case.seqlen_k:
        raise UsageFailure(
            f"lazy attention needs as many keys as rows, got {case.seqlen_q} and {case.seqlen_k}"
        )
    if case.seqlens is not None:
        _check_seqlens(case, case.seqlens)
    if not 0 <= case.seed < 2**63:
        raise UsageFailure(f"--seed must lie in 0 to 2^63 - 1, got {case.seed}")
    if case.window is not None and min(case.window) < -1:
        raise UsageFailure(
            f"--window takes numbers of keys, -1 for no limit, got {case.window[0]},{case.window[1]}"
        )
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
    if case.ranks is None and case.shards != Case.shards:
        raise UsageFailure(
            f"--shards {case.shards}: nothing is divided among ranks", "add --ranks N"
        )


def _check_magnitudes(case: Case) -> None:
    """Refuses numbers so large or small that float32 overflows or underflows in a right kernel."""
    numbers = [("scale", case.scale, MOST), ("softcap", case.softcap or 0.0, MOST_SOFTCAP)]
    numbers += [("tau", tau, MOST) for tau in case.tau or ()]
    for name, number, most in numbers:
        if abs(number) > most:
            raise UsageFailure(
                f"--{name} must be at most {most:.3g} in magnitude, got {number:g}", OVERFLOWS
            )
        if name != "tau" and 0 < abs(number) < LEAST_NORMAL:
            raise UsageFailure(
                f"--{name} must be at least {LEAST_NORMAL:.3g} in magnitude, got {number:g}",
                UNDERFLOWS,
            )


def _check_axes(case: Case, name: str) -> None:
    axes, rank = getattr(case, f"{name}_axes"), getattr(case, f"{name}_rank")
    if not (axes or case.inputs) or set(axes) - set("bhmn") or len(set(axes)) < len(axes):
        raise UsageFailure(f"--{name}-axes takes some of the letters b, h, m and n, got {axes!r}")
    if not 2 <= rank <= 4:
        raise UsageFailure(f"--{name}-rank must be 2, 3 or 4, got {rank}")
    if rank < len(axes):
        raise UsageFailure(
            f"--{name}-rank {rank}: this {name} has the {len(axes)} axes {axes}",
            f"give --{name}-axes as well",
        )


def _check_seqlens(case: Case, seqlens: tuple[int, ...]) -> None:
    if len(seqlens) != case.batch:
        raise UsageFailure(
            f"--seqlens takes one length a batch: {case.batch} batches, got {len(seqlens)}"
        )
    if case.seqlen_q != case.seqlen_k:
        raise UsageFailure("--seqlens (right padding) needs as many keys as query rows")
    if min(seqlens) < 0 or max(seqlens) > case.seqlen_q:
        raise UsageFailure(
            f"--seqlens must lie in 0 to {case.seqlen_q}, got {', '.join(map(str, seqlens))}"
        )
