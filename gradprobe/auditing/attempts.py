"""Attempts: the ways in which a reference may be called on a small drawn case, and the one that is meant."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..inputs.draw import draw
from ..model.case import Case
from ..model.failures import Failure, TargetFailure, UsageFailure, text_of
from ..model.resolution import resolve
from ..numerics.compare import attention_of
from ..reference import Attention, manual_attention_backward
from ..targets.naming import plain_function
from .axes import AXES, MERGED, SHAPES, in_words
from .calling import CallConvention, Called, Callee, is_near
from .explain import AuditExplanation, explain

# A size for each axis that no other axis, and no product of two, has: values tell by their shapes what they are of.
SMALL = {"batch": 2, "heads": 3, "seqlen": 7, "head_dim": 5}
# Some references take whole blocks, or powers of two.
_SIZES = (
    SMALL,
    {"batch": 1, "heads": 2, "seqlen": 64, "head_dim": 16},
    {"batch": 1, "heads": 2, "seqlen": 128, "head_dim": 64},
)
# What a reference may raise because of lengths and head dims that it does not take.
_OF_SIZES = (AssertionError, ValueError, RuntimeError)
_LENGTH, _HEAD_DIM = r"(?:L|N|M|S|T|N_CTX|seq\w*|length)", r"(?:D|dim|d_k|head_?dim|d_?head)"
_FEWER = {
    2: rf"single[ -]head|one head|[\[\(] *{_LENGTH} *, *{_HEAD_DIM} *[\]\)]",
    3: rf"[\[\(] *(?:B|H|\w*heads|batch) *, *{_LENGTH} *, *{_HEAD_DIM} *[\]\)]"
    rf"|[\[\(] *{_LENGTH} *, *(?:H|\w*heads) *, *{_HEAD_DIM} *[\]\)]",
}
"""What a function says of its tensors that have no batches, or neither batches nor heads."""


@dataclass(frozen=True)
class ReferenceSetting:
    """What a reference does by itself."""

    causal: bool
    scale: float | None
    """None for 1 / sqrt(head dim)."""
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """A case, its values in float64, and what is due."""

    case: Case
    values: Mapping[str, Tensor]
    due: Mapping[str, Tensor]

    @property
    def x(self) -> Attention:
        return attention_of(self.case, self.values)


@dataclass(frozen=True)
class Attempt:
    """One way in which a reference was called, and how much of it came right."""

    how: CallConvention
    setting: ReferenceSetting
    drawn: Drawn
    called: Called
    wrong: tuple[str, ...]

    @property
    def right(self) -> int:
        return len(self.called.results) - len(self.wrong)


class ReferenceSearch:
    """Calls one reference in one way after another."""

    def __init__(self, callee: Callee, family: str, options: dict[str, Any]) -> None:
        self._callee, self._family, self._given = callee, family, options
        self._raised: list[tuple[CallConvention, BaseException]] = []
        self._cases: dict[tuple[Any, ...], Drawn] = {}
        self._explanations: dict[tuple[CallConvention, Case], AuditExplanation] = {}

    def _drawn(self, setting: ReferenceSetting, seed: int, sizes: Mapping[str, int]) -> Drawn:
        key = setting, seed, tuple(sizes.items())
        if key not in self._cases:
            self._cases[key] = self._drawn_anew(setting, seed, sizes)
        return self._cases[key]

    def _drawn_anew(self, setting: ReferenceSetting, seed: int, sizes: Mapping[str, int]) -> Drawn:
        options = {**sizes, **self._given, "seed": seed, "causal": setting.causal}
        if setting.scale is not None:
            options["scale"] = setting.scale
        required = "bias" in self._callee.takes and self._is_required("bias") and "" in self._callee.masks
        options |= {"bias": True} if required else {}
        if self._family == "lazy":
            options.pop("causal")
        case = resolve(options, self._family, takes_bias=required)
        drawn = draw(case)
        values: dict[str, Any] = {name: one.double() if one.is_floating_point() else one for name, one in drawn.items()}
        known: dict[str, Any] = {
            name: getattr(case, name) for name in ("family", "causal", "scale", "window", "softcap", "align")
        }
        due = manual_attention_backward(**values, **known)
        return Drawn(case, values, due)

    def _is_required(self, name: str) -> bool:
        parameter = inspect.signature(self._callee.function).parameters[self._callee.takes[name]]
        return parameter.default is parameter.empty

    def _call(self, how: CallConvention, drawn: Drawn, *, watch: bool = False) -> Called:
        due = drawn.due
        saved = {"o": due["O"], "lse": due["LSE"], "delta": due["delta"], "P": due["P"]}
        values = {**drawn.values, **saved, **{f"due {name}": value for name, value in due.items()}}
        case = drawn.case
        options = {"causal": case.causal, "scale": case.scale, "window": case.window, "softcap": case.softcap}
        options |= {"tau": self._as(how, drawn.values.get("tau")), "bias": self._as(how, drawn.values.get("bias"))}
        return _with_conventions(self._callee.call(how, values, options, watch=watch), drawn)

    @staticmethod
    def _as(how: CallConvention, tensor: Tensor | None) -> Any:
        return tensor if tensor is None or how.library == "torch" else tensor.numpy()

    def _settings(self, how: CallConvention) -> Iterator[ReferenceSetting]:
        """What it may do by itself, the likelier first: what its own text says of a mask, then the plain scale."""
        takes = self._callee.takes
        if self._family == "lazy":
            yield ReferenceSetting(True, None)
            return
        masked = [False, True]
        if self._callee.masks[0]:  # which shows what the mask means; without it none is laid
            masked = [bool(how.mask)]
        elif "causal" not in takes:
            masked = [True, False] if self._mentions_mask() else [False, True]
        yield from (ReferenceSetting(causal, None) for causal in masked)
        if "scale" not in takes:
            yield from (ReferenceSetting(causal, 1.0) for causal in masked)

    def _mentions_mask(self) -> bool:
        return re.search(r"tril|triu|causal|mask", self._text()) is not None

    def _text(self) -> str:
        """The text of the function; "" where it cannot be read."""
        try:
            return inspect.getsource(plain_function(self._callee.function))
        except (OSError, TypeError):
            return ""

    def _best(self) -> Attempt:
        """The way of calling it by which most is right; of ways that are as good, one whose mistakes are known."""
        attempts: list[Attempt] = []
        for sizes in _SIZES:
            for attempt in self._attempts(sizes):
                attempts.append(attempt)
                if not attempt.wrong and self._is_meant(attempt, attempts):
                    return attempt
            if attempts or not any(isinstance(error, _OF_SIZES) for _, error in self._raised):
                break
        if not attempts:
            failure, error = self._cannot_run()
            raise failure from error
        attempts = [one for one in attempts if self._is_meant(one, attempts)]
        found: list[tuple[AuditExplanation, Attempt]] = []
        for shapes in dict.fromkeys(one.how.shapes for one in attempts):
            alike = [one for one in attempts if one.how.shapes == shapes]
            found += [(self._explained(one), one) for one in self._likeliest(alike)]
            if any(not explanation.unexplained for explanation, _ in found):
                break

        def rank(pair: tuple[AuditExplanation, Attempt]) -> tuple[int, bool, int]:
            explanation, attempt = pair
            return len(explanation.unexplained), attempt.setting.scale is not None, len(explanation.located)

        return min(found, key=rank)[1]

    def _is_meant(self, attempt: Attempt, attempts: list[Attempt]) -> bool:
        """Whether a way of calling it may decide: with fewer axes only where it does not run with more, or says so."""
        first, text = attempts[0].how.shapes, self._text()
        if len(attempt.how.shapes) >= len(first) or attempt.how.library != attempts[0].how.library:
            return True
        return re.search(_FEWER[len(attempt.how.shapes)], text, re.IGNORECASE) is not None

    def _likeliest(self, attempts: list[Attempt]) -> list[Attempt]:
        """One attempt a setting, those with the most right results first, in the order in which they were made."""
        by_setting: dict[tuple[bool, float | None], Attempt] = {}
        for attempt in attempts:
            key = attempt.setting.causal, attempt.setting.scale
            if key not in by_setting or attempt.right > by_setting[key].right:
                by_setting[key] = attempt
        told = "causal" in self._callee.takes or self._family == "lazy"
        kept = [one for one in by_setting.values() if one.setting.scale is None or one.right]
        return kept[:1] if told else kept

    def _attempts(self, sizes: Mapping[str, int]) -> Iterator[Attempt]:
        known = [shapes for shapes in SHAPES if shapes != MERGED or self._callee.has_width]
        for library, shapes in itertools.product(self._callee.libraries, known):
            one = {letter: 1 for letter, name in (("b", "batch"), ("h", "heads")) if letter not in shapes}
            fitting = {**sizes, **{{"b": "batch", "h": "heads"}[letter]: size for letter, size in one.items()}}
            ran = False
            for mask in self._callee.masks:
                plain = CallConvention(library, shapes, mask)
                ways = [plain, replace(plain, leaves=True)]
                ways += [replace(plain, unknown=flag) for flag in (False, True) if self._callee.unknown]
                for how in ways:
                    found = list(self._with_settings(how, fitting))
                    yield from found
                    ran |= bool(found)
                    if found:
                        break
            if ran and len(self._callee.libraries) > 1 and shapes == known[-1]:
                return

    def _with_settings(self, how: CallConvention, sizes: Mapping[str, int]) -> Iterator[Attempt]:
        for setting in self._settings(how):
            drawn = self._drawn(setting, 0, sizes)
            try:
                called = self._call(how, drawn)
            except Exception as error:  # a stranger's function may raise anything, in shapes that it does not take
                self._raised.append((how, error))
                continue
            shapes = {
                name: (result.shape, drawn.due[name].shape)
                for name, result in called.results.items()
                if name in drawn.due
            }
            if any(came == due for came, due in shapes.values()):
                yield Attempt(how, setting, drawn, called, wrong_of(called, drawn))
            else:
                unfit = [f"{name} of {list(came)} for {list(due)}" for name, (came, due) in shapes.items()]
                self._raised.append((how, TypeError(f"it returned {', '.join(unfit) or 'nothing to compare'}")))

    def _cannot_run(self) -> tuple[Failure, BaseException]:
        """Why it cannot be judged, and what it raised."""
        how, error = next(((how, one) for how, one in self._raised if not isinstance(one, TypeError)), self._raised[0])
        if unknown := self._callee.unknown:
            failure: Failure = UsageFailure(
                f"reference {self._callee.word!r} needs a parameter {unknown[0]!r} that gradprobe has no value for",
                "name it as the field does: q, k, v, do, o, lse, scale, causal, mask; or give it a default",
            )
            return failure, error
        words = f"{type(error).__name__}: {text_of(error)}"
        tried = ", ".join(f"[{in_words(shapes)}]" for shapes in SHAPES)
        failure = TargetFailure(
            f"reference {self._callee.word!r} raised, with q of [{in_words(how.shapes)}], {words}",
            f"tried: {tried}; --traceback shows where",
        )
        return failure, error

    def _explained(self, attempt: Attempt) -> AuditExplanation:
        """Why an attempt is wrong; the call is made once more and watched."""
        key = attempt.how, attempt.drawn.case
        if key not in self._explanations:
            self._explanations[key] = self._watched(attempt)
        return self._explanations[key]

    def _watched(self, attempt: Attempt) -> AuditExplanation:
        try:
            called = self._call(attempt.how, attempt.drawn, watch=True)
        except Exception:  # its file is not what runs, as after an edit: then no line is known
            called = attempt.called
        before = attempt.called.results
        if any(
            not one.allclose(before[name], equal_nan=True) for name, one in called.results.items() if name in before
        ):
            return AuditExplanation(unexplained=attempt.wrong, varies=True)
        results = {name: result.detach().double().numpy() for name, result in called.results.items()}
        text = self._text()
        by_autograd = not self._callee.is_backward or re.search(r"\.backward\(|autograd|\.grad\b|vjp", text) is not None
        told = "causal" in self._callee.takes
        how = {"by_autograd": by_autograd, "asks_for_mask": told}
        return explain(attempt.drawn.x, called.values, results, attempt.wrong, **how)


def wrong_of(called: Called, drawn: Drawn) -> tuple[str, ...]:
    due = drawn.due
    return tuple(
        name for name in AXES if name in called.results and name in due and not is_near(called.results[name], due[name])
    )


# What is made on the way: a constant in it is its author's convention, where the gradients are right.
_ON_THE_WAY = ("P", "dP", "dS", "delta", "LSE")


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
