"""An audit: a reference of the user's own called on small drawn cases, judged, and explained where it is wrong."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..inputs.draw import draw
from ..model.case import Case, resolve
from ..model.failures import Failure, TargetFailure, UsageFailure, text_of
from ..model.report import Opinion
from ..numerics.compare import attention_of, compare
from ..numerics.evidence import LayoutRun, Measured
from ..numerics.identities import identities
from ..numerics.locate import locate
from ..numerics.precision import precision_of
from ..reference import Attention, manual_attention_backward
from ..runtime.trace import Trace
from ..targets.find import family_of, find_function
from ..targets.naming import plain_function
from .calling import AXES, MERGED, SHAPES, Called, Callee, Convention, is_near
from .explain import Explanation, explain
from .judges import by_autograd, by_differences, opinion, own_forwards

# A size for each axis that no other axis, and no product of two, has: values tell by their shapes what they are of.
SMALL = {"batch": 2, "heads": 3, "seqlen": 7, "head_dim": 5}
# Some references take whole blocks, or powers of two.
_SIZES = (
    SMALL,
    {"batch": 1, "heads": 2, "seqlen": 64, "head_dim": 16},
    {"batch": 1, "heads": 2, "seqlen": 128, "head_dim": 64},
)
_SEEDS = (0, 1, 2)
# What a reference may raise because of lengths and head dims that it does not take.
_OF_SIZES = (AssertionError, ValueError, RuntimeError)
_OTHER_SCALE = 0.3
_LONGEST_WORDS = 120
_LENGTH, _HEAD_DIM = r"(?:L|N|M|S|T|N_CTX|seq\w*|length)", r"(?:D|dim|d_k|head_?dim|d_?head)"
_FEWER = {
    2: rf"single[ -]head|one head|[\[\(] *{_LENGTH} *, *{_HEAD_DIM} *[\]\)]",
    3: rf"[\[\(] *(?:B|H|\w*heads|batch) *, *{_LENGTH} *, *{_HEAD_DIM} *[\]\)]"
    rf"|[\[\(] *{_LENGTH} *, *(?:H|\w*heads) *, *{_HEAD_DIM} *[\]\)]",
}
"""What a function says of its tensors that have no batches, or neither batches nor heads."""
_SWAPS = (("k", "v"), ("q", "k"), ("q", "v"), ("v", "do"), ("q", "do"), ("o", "v"), ("o", "do"))


@dataclass(frozen=True)
class Setting:
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

    how: Convention
    setting: Setting
    drawn: Drawn
    called: Called
    wrong: tuple[str, ...]

    @property
    def right(self) -> int:
        return len(self.called.results) - len(self.wrong)


@dataclass(frozen=True)
class Audit:
    """What became of a reference."""

    callee: Callee
    attempt: Attempt
    """How it is called, in its first wrong run, else in the first."""
    runs: tuple[LayoutRun, ...]
    explanation: Explanation | None
    """None where all is right."""
    opinions: tuple[Opinion, ...] = ()
    taken: tuple[str, ...] = ()
    misshapen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The results of another shape than the axes of their names."""

    @property
    def is_right(self) -> bool:
        return not self.misshapen and all(run.matches for run in self.runs)


def audit(
    subject: Any, family: str | None = None, options: Mapping[str, Any] | None = None, *, judges: bool = True
) -> Audit:
    """Calls a reference on small cases, with and without a causal mask, and says what is wrong with it.

    Args:
        subject: the word of a function, or a function.
        options: further options of the cases, by name.
        judges: whether autograd and finite differences are asked too.

    Raises:
        UsageFailure: there is no such function, or nothing can be passed for a parameter.
        TargetFailure: it raises in whatever way it is called, or returns nothing that can be told.
    """
    callee = Callee(find_function(subject))
    return _Auditing(callee, family or family_of(callee.takes), dict(options or {})).audit(judges)


class _Auditing:
    def __init__(self, callee: Callee, family: str, options: dict[str, Any]) -> None:
        self._callee, self._family, self._given = callee, family, options
        self._raised: list[tuple[Convention, BaseException]] = []
        self._cases: dict[tuple[Any, ...], Drawn] = {}
        self._explanations: dict[tuple[Convention, Case], Explanation] = {}

    def audit(self, judges: bool) -> Audit:
        best = self._best()
        swapped = self._swapped(best) if best.wrong else None
        taken = self._taken(best)
        settings = [best.setting, *self._others(best)]
        # Beside a check one draw is enough: it judges the reference on its own values too.
        seeds = _SEEDS if judges else _SEEDS[:1]
        by_setting = [[self._run(best, setting, seed) for seed in seeds] for setting in settings]
        runs = [found for those in by_setting for found in those if found is not None]
        taken += tuple(
            f"it was not judged {_name(setting)}: it raised {self._last_words()}"
            for setting, those in zip(settings, by_setting, strict=True)
            if not any(those)
        )
        failing = next((run for run in runs if not run[1].matches or run[2]), runs[0])
        attempt, _, misshapen = failing
        made = Audit(self._callee, attempt, tuple(run for _, run, _ in runs), None, (), taken, misshapen)
        if made.is_right and not judges:
            return made
        opinions = self._opinions(attempt) if judges else ()
        if made.is_right:
            return replace(made, opinions=opinions)
        explanation = swapped or self._explained(attempt)
        return replace(made, explanation=explanation, opinions=opinions)

    # --- how it is called

    def _drawn(self, setting: Setting, seed: int, sizes: Mapping[str, int]) -> Drawn:
        key = setting, seed, tuple(sizes.items())
        if key not in self._cases:
            self._cases[key] = self._drawn_anew(setting, seed, sizes)
        return self._cases[key]

    def _drawn_anew(self, setting: Setting, seed: int, sizes: Mapping[str, int]) -> Drawn:
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

    def _call(self, how: Convention, drawn: Drawn, *, watch: bool = False) -> Called:
        due = drawn.due
        saved = {"o": due["O"], "lse": due["LSE"], "delta": due["delta"], "P": due["P"]}
        values = {**drawn.values, **saved, **{f"due {name}": value for name, value in due.items()}}
        case = drawn.case
        options = {"causal": case.causal, "scale": case.scale, "window": case.window, "softcap": case.softcap}
        options |= {"tau": self._as(how, drawn.values.get("tau")), "bias": self._as(how, drawn.values.get("bias"))}
        return _with_conventions(self._callee.call(how, values, options, watch=watch), drawn)

    @staticmethod
    def _as(how: Convention, tensor: Tensor | None) -> Any:
        return tensor if tensor is None or how.library == "torch" else tensor.numpy()

    def _settings(self, how: Convention) -> Iterator[Setting]:
        """What it may do by itself, the likelier first: what its own text says of a mask, then the plain scale."""
        takes = self._callee.takes
        if self._family == "lazy":
            yield Setting(True, None)
            return
        masked = [False, True]
        if self._callee.masks[0]:  # which shows what the mask means; without it none is laid
            masked = [bool(how.mask)]
        elif "causal" not in takes:
            masked = [True, False] if self._mentions_mask() else [False, True]
        yield from (Setting(causal, None) for causal in masked)
        if "scale" not in takes:
            yield from (Setting(causal, 1.0) for causal in masked)

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
        found: list[tuple[Explanation, Attempt]] = []
        for shapes in dict.fromkeys(one.how.shapes for one in attempts):
            alike = [one for one in attempts if one.how.shapes == shapes]
            found += [(self._explained(one), one) for one in self._likeliest(alike)]
            if any(not explanation.unexplained for explanation, _ in found):
                break

        def rank(pair: tuple[Explanation, Attempt]) -> tuple[int, bool, int]:
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
                plain = Convention(library, shapes, mask)
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

    def _with_settings(self, how: Convention, sizes: Mapping[str, int]) -> Iterator[Attempt]:
        for setting in self._settings(how):
            drawn = self._drawn(setting, 0, sizes)
            try:
                called = self._call(how, drawn)
            except Exception as error:  # a stranger's function may raise anything, in shapes that it does not take
                self._raised.append((how, error))
                continue
            if any(
                result.shape == drawn.due[name].shape for name, result in called.results.items() if name in drawn.due
            ):
                yield Attempt(how, setting, drawn, called, _wrong(called, drawn))

    def _cannot_run(self) -> tuple[Failure, BaseException]:
        """Why it cannot be judged, and what it raised."""
        how, error = next(((how, one) for how, one in self._raised if not isinstance(one, TypeError)), self._raised[0])
        if unknown := self._callee.unknown:
            failure: Failure = UsageFailure(
                f"reference {self._callee.word!r} needs a parameter {unknown[0]!r} that nothing can be passed for",
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

    # --- what it does by itself

    def _others(self, best: Attempt) -> list[Setting]:
        """Other settings that it takes: the other mask, another scale."""
        found = []
        takes = self._callee.takes
        if self._family != "lazy" and ("causal" in takes or best.how.mask):
            found.append(Setting(not best.setting.causal, best.setting.scale))
        if "scale" in takes:
            found.append(Setting(best.setting.causal, _OTHER_SCALE))
        return found

    def _taken(self, best: Attempt) -> tuple[str, ...]:
        how, setting, takes = best.how, best.setting, self._callee.takes
        what = "numpy arrays" if how.library == "numpy" else "torch tensors"
        found = [f"{what} of [{in_words(how.shapes)}]; its results are named by {best.called.order}"]
        if self._family != "lazy" and "causal" not in takes:
            found += ["causal by itself: it takes no such parameter"] if setting.causal and not how.mask else []
            meaning = {"keep": "True where a key is seen", "hide": "True where a key is hidden", "additive": "-inf"}
            found += [f"its mask is {meaning[how.mask]}"] if how.mask else []
            found += [
                f"no {takes.get('mask', takes.get('bias'))} was given: none that was tried fits"
            ] * self._lacks_mask(how)
        if setting.scale == 1.0:
            found.append("its scale is 1, not 1 / sqrt(head dim): it is right for that one")
        found += best.called.conventions
        if self._callee.unknown:
            found.append(
                f"{', '.join(f'{name}={how.unknown}' for name in self._callee.unknown)}, of which nothing is known"
            )
        order = [name for name in takes if name in ("q", "k", "v")]
        if order != ["q", "k", "v"]:
            given = ", ".join(takes[name] for name in takes if name in ("q", "k", "v", "do"))
            found.append(f"its parameters come in the order {given}: a call by position as q, k, v mixes them up")
        return tuple(found)

    def _lacks_mask(self, how: Convention) -> bool:
        return bool(self._callee.masks[0]) and not how.mask

    # --- judging

    def _run(
        self, best: Attempt, setting: Setting, seed: int
    ) -> tuple[Attempt, LayoutRun, dict[str, tuple[int, ...]]] | None:
        sizes = {name: getattr(best.drawn.case, name) for name in ("batch", "heads", "head_dim")}
        drawn = self._drawn(setting, seed, {**sizes, "seqlen": best.drawn.case.seqlen_q})
        try:
            called = self._call(best.how, drawn)
        except Exception as error:
            self._raised.append((best.how, error))
            return None
        expected = {name: tuple(drawn.due[name].shape) for name in called.results if name in drawn.due}
        fitting = {
            name: called.results[name]
            for name in AXES
            if name in expected and called.results[name].shape == expected[name]
        }
        misshapen = {name: tuple(called.results[name].shape) for name in expected if name not in fitting}
        trace = Trace(fitting, dict.fromkeys(fitting, "exported"))
        comparison = compare(drawn.case, drawn.x, trace, precision_of("float32", "ieee"))
        held = tuple(identities(drawn.case, drawn.x, trace, comparison))
        measured = Measured(drawn.x, trace, comparison, locate(drawn.x, trace, comparison), held)
        beyond = {name for name, finding in comparison.findings.items() if finding.mismatched}
        wrong = tuple(name for name in AXES if name in {*_wrong(called, drawn), *beyond})
        attempt = Attempt(best.how, setting, drawn, called, wrong)
        return attempt, LayoutRun(f"{_name(setting)} seed={seed}", (), measured, None), misshapen

    def _last_words(self) -> str:
        error = self._raised[-1][1]
        return f"{type(error).__name__}: {text_of(error)}"[:_LONGEST_WORDS]

    def _opinions(self, attempt: Attempt) -> tuple[Opinion, ...]:
        case, results, drawn = attempt.drawn.case, attempt.called.results, attempt.drawn
        judged = {name: name not in attempt.wrong for name in results}
        found = [opinion("the built-in formulas, float64", judged)]
        options = {"causal": case.causal, "scale": case.scale}
        saved = {"o": drawn.due["O"], "lse": drawn.due["LSE"], "delta": drawn.due["delta"], "P": drawn.due["P"]}
        values = {**drawn.values, **saved}
        forwards = list(own_forwards(self._callee, attempt.how, options))
        of_autograd, forward = by_autograd(iter(forwards), values, results, drawn.due["O"])
        found += [of_autograd] if of_autograd is not None else []

        def built_in(values: Mapping[str, Tensor]) -> Tensor:
            x = attention_of(case, {**drawn.values, **{name: values[name] for name in ("q", "k", "v", "do")}})
            return manual_attention_backward(
                x.q, x.k, x.v, x.do, family=x.family, causal=x.causal, scale=x.scale, bias=x.bias, tau=x.tau,
                softcap=x.softcap, matrices=False,
            )["O"]  # fmt: skip

        of_differences = by_differences(built_in, "the built-in O", drawn.values, results)
        found += [of_differences] if of_differences is not None else []
        if forward is not None and of_autograd is None:
            own = by_differences(forward.output, forward.name, values, results)
            found += [own] if own is not None else []
        return tuple(found)

    # --- explaining

    def _explained(self, attempt: Attempt) -> Explanation:
        """Why an attempt is wrong; the call is made once more and watched."""
        key = attempt.how, attempt.drawn.case
        if key not in self._explanations:
            self._explanations[key] = self._watched(attempt)
        return self._explanations[key]

    def _watched(self, attempt: Attempt) -> Explanation:
        called = self._call(attempt.how, attempt.drawn, watch=True)
        results = {name: result.detach().double().numpy() for name, result in called.results.items()}
        text = self._text()
        by_autograd = not self._callee.is_backward or re.search(r"\.backward\(|autograd|\.grad\b|vjp", text) is not None
        told = "causal" in self._callee.takes
        how = {"by_autograd": by_autograd, "asks_for_mask": told}
        return explain(attempt.drawn.x, called.values, results, attempt.wrong, **how)

    def _swapped(self, best: Attempt) -> Explanation | None:
        """Two parameters of which each is used as the other, if all is right then."""
        for pair in _SWAPS:
            if not set(pair) <= self._callee.takes.keys():
                continue
            try:
                called = self._call(replace(best.how, swapped=pair), best.drawn)
            except Exception:
                continue
            renamed = {f"d{pair[0].upper()}": f"d{pair[1].upper()}", f"d{pair[1].upper()}": f"d{pair[0].upper()}"}
            for names in ({}, renamed):
                results = {names.get(name, name): result for name, result in called.results.items()}
                if not _wrong(replace(called, results=results), best.drawn):
                    return Explanation(swapped=(self._callee.takes[pair[0]], self._callee.takes[pair[1]]))
        return None


def _wrong(called: Called, drawn: Drawn) -> tuple[str, ...]:
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


def _name(setting: Setting) -> str:
    scaled = f" scale={setting.scale:g}" if setting.scale is not None else ""
    return ("causal" if setting.causal else "not causal") + scaled


def in_words(shapes: str) -> str:
    """`B, H, L, D`, or `B, L, H*D`."""
    return "B, L, H*D" if shapes == MERGED else ", ".join(shapes.upper())
