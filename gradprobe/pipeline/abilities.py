"""Abilities: what a target may take and a case does not use, each with a small case that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..model.case import Case
from ..targets.find import Target
from .fit import OF_LENGTH
from .resolve import Problem

# A tile and a half of 16, less than one of 32, and a multiple of 8, which many kernels ask for.
_SHORT, _LONGER = 24, 40
_BATCHES, _HEADS = 3, 10
_BATCH = "batch"
# Elements of all score matrices of one small case: where its length may not be small, it is not run beyond.
_MOST_SCORES = 1 << 20
# Of parameters whose convention only the target knows: the option of a case, and its flag.
_OPTIONS = {name: (name, f"--{name}") for name in ("softcap", "bias", "alibi", "mask", "sinks", "seqlens")}
_OPTIONS |= {"keep": ("dropout", "--dropout")}
_OPTIONS |= {name: ("cu_seqlens_q", "--cu-seqlens") for name in ("cu_seqlens", "cu_seqlens_q")}


@dataclass(frozen=True, eq=False)
class Ability:
    """Something that a target may take and a case does not use."""

    words: str
    """What it is: "a tenth head"."""
    flag: str
    """The options that ask for it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Words of a small case that uses it; empty where none is run."""
    is_plain: bool = False
    """Whether the target's parameters say that it takes it, so that wrong results are a fault."""
    shown_by: tuple[str, ...] = ()
    """The results of which one that is right throughout shows that it is taken, where no parameter says so."""
    compiles_nothing: bool = False
    """Whether other numbers of the same types alone are given, for which no kernel is compiled anew."""
    beside: str = ""
    """The small case in which it may stand with others: where all of it is right, each is."""

    @property
    def sentence(self) -> str:
        """As it is listed: "a tenth head (--heads)"."""
        return f"{self.words} ({self.flag})" if self.words else self.flag


def unused_abilities(problem: Problem) -> list[Ability]:
    """What the case of a problem does not use, the simplest first.

    Of an option that somebody gave, or that a file of inputs holds, there is no small case: it stays as it is.
    """
    case, target = problem.case, problem.target
    small = partial(_small, problem)
    found = [*_counts(case, small), *_meanings(case, target, small)]
    if case.family == "softmax":
        found += [*_groups(case, small), *_lengths(case, target, small), *_value_dim(case, small)]
    # Of what no option says that it is left out, only what is run is told.
    extremes = (one for one in _extremes(case, small) if one.options)
    return [*found, *extremes, *_conventions(case, target)]


def _small(problem: Problem, **options: Any) -> dict[str, Any]:
    """The words of a small case with some options; none where it would not be small, or changes what was given."""
    case = problem.case
    if problem.saved is not None or case.ranks or case.cu_seqlens_q or case.seqlens or problem.fixed & options.keys():
        return {}
    sizes: dict[str, Any] = {"batch": 1}
    if case.kv_heads == case.heads:
        sizes["heads"] = 2
    if not {*OF_LENGTH} & problem.request.options.keys() and not {"seqlen_q"} & options.keys():
        sizes["seqlen"] = _SHORT
    given = {name: size for name, size in sizes.items() if name not in {*problem.fixed, *options}} | options
    rows = given.get("seqlen_q", given.get("seqlen", case.seqlen_q))
    keys = given.get("seqlen_k", given.get("seqlen", case.seqlen_k))
    scores = given.get("batch", case.batch) * given.get("heads", case.heads) * rows * keys
    return given if scores <= _MOST_SCORES else {}


Small = Callable[..., dict[str, Any]]


def _counts(case: Case, small: Small) -> Iterator[Ability]:
    """More batches and heads than the case has, as far as its tensors have axes for them."""
    if "b" in case.shapes and case.batch < _BATCHES:
        options = small(batch=_BATCHES)
        yield Ability("a third batch", "--batch", options, is_plain=True, compiles_nothing=True, beside=_BATCH)
    if "h" in case.shapes and case.heads < _HEADS:
        grouped = case.heads != case.kv_heads
        options = {} if grouped else small(heads=_HEADS)
        yield Ability("a tenth head", "--heads", options, is_plain=True, compiles_nothing=True)


def _meanings(case: Case, target: Target, small: Small) -> Iterator[Ability]:
    """Options of which a parameter says what they mean; the convention of a window is the target's own."""
    softmax = case.family == "softmax"
    square = case.seqlen_q == case.seqlen_k
    if softmax and "causal" in target.takes and square:
        words, flag = ("no causal mask", "--no-causal") if case.causal else ("a causal mask", "--causal")
        # Of the case's own length: its loops begin or end at other tiles than the first.
        yield Ability(words, flag, small(causal=not case.causal, seqlen=case.seqlen_q), is_plain=True)
    if "scale" in target.takes and case.pattern != "dyadic":
        options = small(scale=round(1.5 * case.scale, 2) or 1.0)
        yield Ability("another scale", "--scale", options, is_plain=True, beside=_BATCH)
    if softmax and "window" in target.takes and (case.window is None or min(case.window) <= 0):
        yield Ability("both sides of a window", "--window", small(window="5,3") if square else {})


def _groups(case: Case, small: Small) -> Iterator[Ability]:
    if "h" not in case.shapes or case.kv_heads != case.heads:
        return
    # Torch spreads a single key head over all heads, and raises of other numbers that differ: whoever has one of these
    # results right then gives each head its key head.
    if options := small(heads=4, kv_heads=2):
        yield Ability("grouped heads", "--kv-heads", options, shown_by=("O", "dQ", "dK", "dV"))
    else:
        yield Ability("grouped heads", "--kv-heads", small(kv_heads=1) if case.heads > 1 else {})


def _lengths(case: Case, target: Target, small: Small) -> Iterator[Ability]:
    """More keys than rows, and more rows than keys, without a mask that counts from a corner."""
    if case.seqlen_q != case.seqlen_k or {"seqlens", "cu_seqlens"} & target.required:
        return
    flat: dict[str, Any] = {"causal": False} if case.causal and "causal" in target.takes else {}
    is_flat = not case.causal or bool(flat)
    is_plain = bool({"align", "cu_seqlens_k", "max_seqlen_k"} & target.takes.keys())
    for words, rows, keys in (("more keys than rows", _SHORT, _LONGER), ("more rows than keys", _LONGER, _SHORT)):
        free = is_flat and small(seqlen=_SHORT).get("seqlen") == _SHORT
        options = small(seqlen_q=rows, seqlen_k=keys, **flat) if free else {}
        yield Ability(words, "--seqlen-q, --seqlen-k", options, is_plain)


def _value_dim(case: Case, small: Small) -> Iterator[Ability]:
    if case.head_dim_v == case.head_dim:
        yield Ability("a head dim of v alone", "--head-dim-v", small(head_dim_v=16 if case.head_dim > 16 else 32))


def _extremes(case: Case, small: Small) -> Iterator[Ability]:
    """Logits far from 0, which no softmax without its maximum bears; a single row; a head dim that fills all lanes."""
    if case.pattern == Case.pattern:
        for words, pattern in (("large logits", "large"), ("logits near -120", "negative")):
            yield Ability(words, f"--pattern {pattern}", small(pattern=pattern))
    if small().get("seqlen") == _SHORT and case.seqlen_q == case.seqlen_k:
        yield Ability("a single row and key", "--seqlen", small(seqlen=1), is_plain=True)
    if case.head_dim == case.head_dim_v:
        yield Ability("another head dim", "--head-dim", small(head_dim=32 if case.head_dim == 64 else 64))


def _conventions(case: Case, target: Target) -> Iterator[Ability]:
    """Options whose meaning, or whose tensor's shape, is the target's own."""
    for name, (option, flag) in _OPTIONS.items():
        if name in target.takes and name not in target.required and not getattr(case, option):
            yield Ability("", flag)
