"""Attempts: the ways in which a reference may be called on a small drawn case, and the one that is meant."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..frontends.python import plain_function
from ..frontends.python.events import Value, watched
from ..inputs.draw import draw
from ..model.case import Case
from ..model.failures import Failure, TargetFailure, UsageFailure, text_of
from ..model.resolution import resolve
from ..numerics.compare import attention_of
from ..reference import Attention, manual_attention_backward
from .calling import SHAPES, CallConvention, Called, Callee, in_words, is_near
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
# What is judged. What else is made on the way may be of its author's convention.
_RESULTS = ("O", "dQ", "dK", "dV")
_OPTIONS = ("family", "causal", "scale", "window", "softcap", "align")


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
        """The results that are judged."""
        return [name for name in _RESULTS if name in self.called.results]

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
        self._explained: dict[tuple[CallConvention, Case], AuditExplanation] = {}
        try:
            self.text = inspect.getsource(plain_function(callee.function))
        except (OSError, TypeError):
            self.text = ""

    def best(self) -> Attempt:
        """The way of calling it by which most is right; of ways that are as good, one whose mistakes are known.

        Raises:
            UsageFailure, TargetFailure: it raises in every way.
        """
        attempts: list[Attempt] = []
        for sizes in _SIZES:
            for attempt in self._attempts(sizes):
                if attempts and not self._is_meant(attempt, attempts[0]):
                    continue
                if not attempt.wrong:
                    return attempt
                attempts.append(attempt)
            if attempts or not any(isinstance(error, _OF_SIZES) for _, error in self._raised):
                break
        if not attempts:
            failure, error = self._cannot_run()
            raise failure from error
        ranks: list[tuple[tuple[int, bool, int], Attempt]] = []
        for attempt in self._likeliest(attempts):
            if any(not rank[0] and one.how.shapes != attempt.how.shapes for rank, one in ranks):
                break
            reasons = self.explained(attempt)
            rank = len(reasons.unexplained), attempt.how.scale is not None, len(reasons.located)
            ranks.append((rank, attempt))
        return min(ranks, key=lambda one: one[0])[1]

    def drawn(self, how: CallConvention, seed: int, sizes: Mapping[str, int]) -> Drawn:
        """A case of such sizes, with the mask and the scale of a way of calling it."""
        options = {**sizes, **self._options, "seed": seed}
        if self.family != "lazy":
            options["causal"] = how.causal
        if how.scale is not None:
            options["scale"] = how.scale
        with_bias = self.callee.needs_bias and "" in self.callee.masks
        if with_bias:
            options["bias"] = True
        case = resolve(options, self.family, takes_bias=with_bias)
        values: dict[str, Any] = dict(draw(case))
        values = {name: one.double() if one.is_floating_point() else one for name, one in values.items()}
        known: dict[str, Any] = {name: getattr(case, name) for name in _OPTIONS}
        return Drawn(case, values, manual_attention_backward(**values, **known))

    def attempt(self, how: CallConvention, drawn: Drawn, given: Mapping[str, Tensor] | None = None) -> Attempt:
        """Calls it on drawn values, some of them replaced by those given."""
        options = {name: getattr(drawn.case, name) for name in ("causal", "scale", "window", "softcap")}
        options |= {name: drawn.values.get(name) for name in ("tau", "bias")}
        return Attempt(how, drawn, self.callee.call(how, {**drawn.given, **(given or {})}, options))

    def explained(self, attempt: Attempt) -> AuditExplanation:
        """Why an attempt is wrong; the call is made once more and watched."""
        key = attempt.how, attempt.drawn.case
        if key not in self._explained:
            self._explained[key] = self._explanation(attempt)
        return self._explained[key]

    def _explanation(self, attempt: Attempt) -> AuditExplanation:
        called, before, values = attempt.called, attempt.called.results, list[Value]()
        try:
            with watched(self.callee.function) as seen:
                called = self.attempt(attempt.how, attempt.drawn).called
            values += seen.values()
        except Exception:  # its file is not what runs, as after an edit: then no line is known
            pass
        results = {}
        for name, tensor in called.results.items():
            if name not in before or not tensor.allclose(before[name], equal_nan=True):
                return AuditExplanation(unexplained=attempt.wrong)
            results[name] = tensor.double().numpy()
        is_differentiated = re.search(r"\.backward\(|autograd|\.grad\b|vjp", self.text) is not None
        return explain(
            attempt.drawn.x, values, results, attempt.wrong,
            by_autograd=is_differentiated or not self.callee.is_backward,
            asks_for_mask="causal" in self.callee.takes,
        )  # fmt: skip

    def _attempts(self, sizes: Mapping[str, int]) -> Iterator[Attempt]:
        for library in self.callee.libraries:
            ran = False
            for shapes in self.callee.shapes:
                fewer = {name: 1 for letter, name in (("b", "batch"), ("h", "heads")) if letter not in shapes}
                for mask in self.callee.masks:
                    for how in self._settings(CallConvention(library, shapes, mask)):
                        attempt = self._run(how, self.drawn(how, 0, {**sizes, **fewer}))
                        if attempt is not None:
                            ran = True
                            yield attempt
            if ran:
                return

    def _settings(self, how: CallConvention) -> Iterator[CallConvention]:
        """What it may do by itself, the likelier first: what its own text says of a mask, then the plain scale."""
        masked, scales = [False, True], [None, 1.0]
        if self.family == "lazy":
            masked, scales = [True], [None]
        elif self.callee.masks[0]:  # which shows what the mask means; without it none is laid
            masked = [bool(how.mask)]
        elif "causal" not in self.callee.takes and re.search(r"tril|triu|causal|mask", self.text):
            masked = [True, False]
        if "scale" in self.callee.takes:
            scales = [None]
        for scale in scales:
            for causal in masked:
                yield replace(how, causal=causal, scale=scale)

    def _run(self, how: CallConvention, drawn: Drawn) -> Attempt | None:
        """One call, also with inputs that require grad; None where nothing comes of it."""
        for leaves in (False, True):
            how = replace(how, leaves=leaves)
            try:
                attempt = self.attempt(how, drawn)
            except Exception as error:  # a stranger's function may raise anything, in shapes that it does not take
                self._raised.append((how, error))
                continue
            misfits = attempt.misshapen
            if len(misfits) < len(attempt.comparable):
                return attempt
            unfit = [f"{name} of {list(shape)} for {list(drawn.due[name].shape)}" for name, shape in misfits.items()]
            self._raised.append((how, TypeError(f"it returned {', '.join(unfit) or 'nothing to compare'}")))
        return None

    def _is_meant(self, attempt: Attempt, first: Attempt) -> bool:
        """Whether a way of calling it may decide: with fewer axes only where it does not run with more, or says so."""
        shapes = attempt.how.shapes
        return len(shapes) >= len(first.how.shapes) or bool(re.search(_FEWER[len(shapes)], self.text, re.IGNORECASE))

    def _likeliest(self, attempts: list[Attempt]) -> list[Attempt]:
        """One attempt a setting and order of axes, that with the most right results; of one that is told if it is
        causal, the first."""
        is_told = "causal" in self.callee.takes or self.family == "lazy"
        found: dict[tuple[str, str], tuple[int, Attempt]] = {}
        for attempt in attempts:
            how, right = attempt.how, len(attempt.called.results) - len(attempt.wrong)
            setting = how.shapes, "" if is_told else how.setting
            most = found[setting][0] if setting in found else -1
            is_likely = how.scale is None or right
            if is_likely and right > most and not (is_told and setting in found):
                found[setting] = right, attempt
        return [attempt for _, attempt in found.values()]

    def _cannot_run(self) -> tuple[Failure, BaseException]:
        """Why it cannot be judged, and what it raised."""
        raised = [pair for pair in self._raised if not isinstance(pair[1], TypeError)]
        how, error = (raised or self._raised)[0]
        if unknown := self.callee.unknown:
            words = f"reference {self.callee.word!r} needs a parameter {unknown[0]!r} that gradprobe has no value for"
            way_out = "name it as the field does: q, k, v, do, o, lse, scale, causal, mask; or give it a default"
            return UsageFailure(words, way_out), error
        said = f"with q of [{in_words(how.shapes)}], {type(error).__name__}: {text_of(error)}"
        tried = ", ".join(f"[{in_words(shapes)}]" for shapes in SHAPES)
        way_out = f"tried: {tried}; --traceback shows where"
        return TargetFailure(f"reference {self.callee.word!r} raised, {said}", way_out), error
