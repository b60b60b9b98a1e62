"""Attempts: the ways in which a reference may be called on a small drawn case, and the one that is meant."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..frontends.python import plain_function
from ..frontends.python.watching import Value, watched
from ..inputs.draw import draw
from ..model.case import Case
from ..model.failures import Failure, TargetFailure, UsageFailure, text_of
from ..model.resolution import resolve
from ..numerics.compare import attention_of
from ..reference import Attention, manual_attention_backward
from .calling import AXES, MERGED, SHAPES, CallConvention, Called, Callee, in_words, is_near
from .explain import AuditExplanation, explain

# Sizes of axes none of which another axis, or a product of two, has: values tell by their shapes what they are of. And
# some references take whole blocks, or powers of two.
_SIZES = (
    {"batch": 2, "heads": 3, "seqlen": 7, "head_dim": 5},
    {"batch": 1, "heads": 2, "seqlen": 64, "head_dim": 16},
    {"batch": 1, "heads": 2, "seqlen": 128, "head_dim": 64},
)
# What a reference may raise because of lengths and head dims that it does not take.
_OF_SIZES = (AssertionError, ValueError, RuntimeError)
_LENGTH, _HEAD_DIM = r"(?:L|N|M|S|T|N_CTX|seq\w*|length)", r"(?:D|dim|d_k|head_?dim|d_?head)"
# What a function says of its tensors that have no batches, or neither batches nor heads.
_FEWER = {
    2: rf"single[ -]head|one head|[\[\(] *{_LENGTH} *, *{_HEAD_DIM} *[\]\)]",
    3: rf"[\[\(] *(?:B|H|\w*heads|batch) *, *{_LENGTH} *, *{_HEAD_DIM} *[\]\)]"
    rf"|[\[\(] *{_LENGTH} *, *(?:H|\w*heads) *, *{_HEAD_DIM} *[\]\)]",
}
# What is made on the way: a constant in it is its author's convention, where the gradients are right.
_ON_THE_WAY = ("P", "dP", "dS", "delta", "LSE")


@dataclass(frozen=True)
class Drawn:
    """A case, its values in float64, and what is due."""

    case: Case
    values: Mapping[str, Tensor]
    due: Mapping[str, Tensor]

    @property
    def x(self) -> Attention:
        return attention_of(self.case, self.values)

    @property
    def given(self) -> dict[str, Tensor]:
        """The values with what a forward saves, and what is due by its name."""
        saved = {"o": self.due["O"], "lse": self.due["LSE"], "delta": self.due["delta"], "P": self.due["P"]}
        return {**self.values, **saved, **{f"due {name}": value for name, value in self.due.items()}}


@dataclass(frozen=True)
class Attempt:
    """One way in which a reference was called, and how much of it came right."""

    how: CallConvention
    drawn: Drawn
    called: Called
    beyond: frozenset[str] = frozenset()
    """The results that depart by more than their budgets."""

    @property
    def wrong(self) -> tuple[str, ...]:
        results, due = self.called.results, self.drawn.due
        return tuple(name for name in self.comparable if name in self.beyond or not is_near(results[name], due[name]))

    @property
    def comparable(self) -> list[str]:
        """The results of which it is known what is due."""
        return [name for name in AXES if name in self.called.results and name in self.drawn.due]

    @property
    def misshapen(self) -> dict[str, tuple[int, ...]]:
        """The results of another shape than is due."""
        shapes = {name: tuple(self.called.results[name].shape) for name in self.comparable}
        return {name: shape for name, shape in shapes.items() if shape != self.drawn.due[name].shape}


class ReferenceSearch:
    """Calls one reference in one way after another."""

    def __init__(self, callee: Callee, family: str, options: Mapping[str, Any]) -> None:
        self.callee, self.family, self._options = callee, family, options
        self._raised: list[tuple[CallConvention, BaseException]] = []
        self._cases: dict[tuple[Any, ...], Drawn] = {}
        self._explanations: dict[tuple[CallConvention, Case], AuditExplanation] = {}
        try:
            self._text = inspect.getsource(plain_function(callee.function))
        except (OSError, TypeError):
            self._text = ""

    def best(self) -> Attempt:
        """The way of calling it by which most is right; of ways that are as good, one whose mistakes are known.

        Raises:
            UsageFailure, TargetFailure: it raises in every way.
        """
        attempts: list[Attempt] = []
        for sizes in _SIZES:
            for attempt in self._attempts(sizes):
                attempts.append(attempt)
                if not attempt.wrong and self._is_meant(attempt, attempts[0]):
                    return attempt
            if attempts or not any(isinstance(error, _OF_SIZES) for _, error in self._raised):
                break
        if not attempts:
            failure, error = self._cannot_run()
            raise failure from error
        found: list[tuple[tuple[int, bool, int], Attempt]] = []
        meant = (one for one in attempts if self._is_meant(one, attempts[0]))
        for _, alike in itertools.groupby(meant, key=lambda one: one.how.shapes):
            for attempt in self._likeliest(list(alike)):
                reasons = self.explained(attempt)
                rank = len(reasons.unexplained), attempt.how.scale is not None, len(reasons.located)
                found.append((rank, attempt))
            if any(not rank[0] for rank, _ in found):
                break
        return min(found, key=lambda one: one[0])[1]

    def drawn(self, how: CallConvention, seed: int, sizes: Mapping[str, int]) -> Drawn:
        key = how.causal, how.scale, seed, tuple(sizes.items())
        if key not in self._cases:
            options = {**sizes, **self._options, "seed": seed, "causal": how.causal}
            options |= {} if how.scale is None else {"scale": how.scale}
            with_bias = "bias" in self.callee.required and "" in self.callee.masks
            options |= {"bias": True} if with_bias else {}
            if self.family == "lazy":
                options.pop("causal")
            case = resolve(options, self.family, takes_bias=with_bias)
            values: dict[str, Any] = {
                name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in draw(case).items()
            }
            self._cases[key] = Drawn(case, values, due_of(case, values))
        return self._cases[key]

    def attempt(self, how: CallConvention, drawn: Drawn, given: Mapping[str, Tensor] | None = None) -> Attempt:
        """Calls it on drawn values, some of them replaced by those given."""
        options = {name: getattr(drawn.case, name) for name in ("causal", "scale", "window", "softcap")}
        options |= {name: drawn.values.get(name) for name in ("tau", "bias")}
        called = self.callee.call(how, {**drawn.given, **(given or {})}, options)
        return Attempt(how, drawn, _with_conventions(called, drawn))

    def explained(self, attempt: Attempt) -> AuditExplanation:
        """Why an attempt is wrong; the call is made once more and watched."""
        key = attempt.how, attempt.drawn.case
        if key not in self._explanations:
            self._explanations[key] = self._explained(attempt, attempt.wrong)
        return self._explanations[key]

    def _explained(self, attempt: Attempt, wrong: tuple[str, ...]) -> AuditExplanation:
        called, before, values = attempt.called, attempt.called.results, list[Value]()
        try:
            with watched(self.callee.function) as seen:
                called = self.attempt(attempt.how, attempt.drawn).called
            values += seen.values()
        except Exception:  # its file is not what runs, as after an edit: then no line is known
            pass
        for name, tensor in called.results.items():
            if name not in before or not tensor.allclose(before[name], equal_nan=True):
                return AuditExplanation(unexplained=wrong)
        results = {name: result.double().numpy() for name, result in called.results.items()}
        differentiated = re.search(r"\.backward\(|autograd|\.grad\b|vjp", self._text) is not None
        return explain(
            attempt.drawn.x, values, results, wrong,
            by_autograd=differentiated or not self.callee.is_backward, asks_for_mask="causal" in self.callee.takes,
        )  # fmt: skip

    def _settings(self, how: CallConvention) -> Iterator[CallConvention]:
        """What it may do by itself, the likelier first: what its own text says of a mask, then the plain scale."""
        masked = [False, True]
        if self.family == "lazy":
            masked = [True]
        elif self.callee.masks[0]:  # which shows what the mask means; without it none is laid
            masked = [bool(how.mask)]
        elif "causal" not in self.callee.takes and re.search(r"tril|triu|causal|mask", self._text):
            masked = [True, False]
        scales = [None] if self.family == "lazy" or "scale" in self.callee.takes else [None, 1.0]
        yield from (replace(how, causal=causal, scale=scale) for scale in scales for causal in masked)

    def _is_meant(self, attempt: Attempt, first: Attempt) -> bool:
        """Whether a way of calling it may decide: with fewer axes only where it does not run with more, or says so."""
        shapes, how = first.how.shapes, attempt.how
        if len(how.shapes) >= len(shapes) or how.library != first.how.library:
            return True
        return re.search(_FEWER[len(how.shapes)], self._text, re.IGNORECASE) is not None

    def _likeliest(self, attempts: list[Attempt]) -> list[Attempt]:
        """One attempt a setting, that with the most right results; of one that is told if it is causal, the first."""
        by_setting: dict[str, tuple[int, Attempt]] = {}
        for attempt in attempts:
            right = len(attempt.called.results) - len(attempt.wrong)
            if right > by_setting.get(attempt.how.setting, (-1,))[0]:
                by_setting[attempt.how.setting] = right, attempt
        is_told = "causal" in self.callee.takes or self.family == "lazy"
        kept = [one for right, one in by_setting.values() if one.how.scale is None or right]
        return kept[:1] if is_told else kept

    def _attempts(self, sizes: Mapping[str, int]) -> Iterator[Attempt]:
        known = [shapes for shapes in SHAPES if shapes != MERGED or self.callee.has_width]
        for library in self.callee.libraries:
            ran = False
            for shapes, mask in itertools.product(known, self.callee.masks):
                fewer = {name: 1 for letter, name in (("b", "batch"), ("h", "heads")) if letter not in shapes}
                for leaves in (False, True):
                    way = CallConvention(library, shapes, mask, leaves)
                    found = [one for how in self._settings(way) for one in self._runs(how, {**sizes, **fewer})]
                    yield from found
                    if found:
                        ran = True
                        break
            if ran:
                return

    def _runs(self, how: CallConvention, sizes: Mapping[str, int]) -> list[Attempt]:
        """One call, where something comes of it."""
        drawn = self.drawn(how, 0, sizes)
        try:
            attempt = self.attempt(how, drawn)
        except Exception as error:  # a stranger's function may raise anything, in shapes that it does not take
            self._raised.append((how, error))
            return []
        misfits = attempt.misshapen
        if len(misfits) == len(attempt.comparable):
            unfit = [f"{name} of {list(shape)} for {list(drawn.due[name].shape)}" for name, shape in misfits.items()]
            self._raised.append((how, TypeError(f"it returned {', '.join(unfit) or 'nothing to compare'}")))
            return []
        return [attempt]

    def _cannot_run(self) -> tuple[Failure, BaseException]:
        """Why it cannot be judged, and what it raised."""
        raised = [(how, one) for how, one in self._raised if not isinstance(one, TypeError)]
        how, error = (raised or self._raised)[0]
        if unknown := self.callee.unknown:
            failure: Failure = UsageFailure(
                f"reference {self.callee.word!r} needs a parameter {unknown[0]!r} that gradprobe has no value for",
                "name it as the field does: q, k, v, do, o, lse, scale, causal, mask; or give it a default",
            )
            return failure, error
        words = f"{type(error).__name__}: {text_of(error)}"
        tried = ", ".join(f"[{in_words(shapes)}]" for shapes in SHAPES)
        failure = TargetFailure(
            f"reference {self.callee.word!r} raised, with q of [{in_words(how.shapes)}], {words}",
            f"tried: {tried}; --traceback shows where",
        )
        return failure, error


def due_of(case: Case, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the formulas give on some values of a case."""
    known: dict[str, Any] = {
        name: getattr(case, name) for name in ("family", "causal", "scale", "window", "softcap", "align")
    }
    return manual_attention_backward(**values, **known)


def _with_conventions(called: Called, drawn: Drawn) -> Called:
    """The call without intermediates that are what is due times a constant, or dP where no row sees it."""
    found: dict[str, str] = {}
    for name in (name for name in _ON_THE_WAY if name in called.results):
        came, due = called.results[name].double(), drawn.due[name]
        if came.shape != due.shape or is_near(called.results[name], due) or not bool(due.any()):
            continue
        factor = float((came * due).sum() / (due * due).sum())
        if name == "dP" and is_near(came, drawn.values["do"] @ drawn.values["v"].mT):
            found[name] = "its dP is not masked"
        elif factor and is_near(came / factor, due):
            found[name] = f"its {name} is {factor:.4g} times {name}"
    results = {name: result for name, result in called.results.items() if name not in found}
    return replace(called, results=results, conventions=tuple(found.values())) if results else called
