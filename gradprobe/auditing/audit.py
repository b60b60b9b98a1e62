"""An audit: a reference of the user's own called on small drawn cases, judged, and explained where it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..model.failures import text_of
from ..model.report import Opinion
from ..numerics.compare import attention_of, compare
from ..numerics.evidence import LayoutRun, Measured
from ..numerics.identities import identities
from ..numerics.locate import locate
from ..numerics.precision import precision_of
from ..reference import manual_attention_backward
from ..runtime.trace import Trace
from ..targets.find import family_of, find_function
from .attempts import Attempt, ReferenceSearch, ReferenceSetting, wrong_of
from .axes import AXES, in_words
from .calling import CallConvention, Callee
from .explain import AuditExplanation
from .judges import by_autograd, by_differences, opinion, own_forwards

_SEEDS = (0, 1, 2)
_OTHER_SCALE = 0.3
_LONGEST_WORDS = 120
_SWAPS = (("k", "v"), ("q", "k"), ("q", "v"), ("v", "do"), ("q", "do"), ("o", "v"), ("o", "do"))


@dataclass(frozen=True)
class Audit:
    """What became of a reference."""

    callee: Callee
    attempt: Attempt
    """How it is called, in its first wrong run, else in the first."""
    runs: tuple[LayoutRun, ...]
    explanation: AuditExplanation | None
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


class _Auditing(ReferenceSearch):
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

    def _others(self, best: Attempt) -> list[ReferenceSetting]:
        """Other settings that it takes: the other mask, another scale."""
        found = []
        takes = self._callee.takes
        if self._family != "lazy" and ("causal" in takes or best.how.mask):
            found.append(ReferenceSetting(not best.setting.causal, best.setting.scale))
        if "scale" in takes:
            found.append(ReferenceSetting(best.setting.causal, _OTHER_SCALE))
        return found

    def _taken(self, best: Attempt) -> tuple[str, ...]:
        how, setting, takes = best.how, best.setting, self._callee.takes
        what = "numpy arrays" if how.library == "numpy" else "torch tensors"
        found = [f"{what} of [{in_words(how.shapes)}]; its results are named by {best.called.order}"]
        if self._family != "lazy" and "causal" not in takes:
            found += ["it is always causal: it has no parameter for it"] if setting.causal and not how.mask else []
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
                f"{', '.join(f'{name}={how.unknown}' for name in self._callee.unknown)}, whose meaning is not known"
            )
        order = [name for name in takes if name in ("q", "k", "v")]
        if order != ["q", "k", "v"]:
            given = ", ".join(takes[name] for name in takes if name in ("q", "k", "v", "do"))
            found.append(f"its parameters come in the order {given}: a call by position as q, k, v mixes them up")
        return tuple(found)

    def _lacks_mask(self, how: CallConvention) -> bool:
        return bool(self._callee.masks[0]) and not how.mask

    def _run(
        self, best: Attempt, setting: ReferenceSetting, seed: int
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
        measured = Measured(lambda: drawn.x, trace, comparison, locate(drawn.x, trace, comparison), held)
        beyond = {name for name, finding in comparison.findings.items() if finding.mismatched}
        wrong = tuple(name for name in AXES if name in {*wrong_of(called, drawn), *beyond})
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

    def _swapped(self, best: Attempt) -> AuditExplanation | None:
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
                if not wrong_of(replace(called, results=results), best.drawn):
                    return AuditExplanation(swapped=(self._callee.takes[pair[0]], self._callee.takes[pair[1]]))
        return None


def _name(setting: ReferenceSetting) -> str:
    scaled = f" scale={setting.scale:g}" if setting.scale is not None else ""
    return ("causal" if setting.causal else "not causal") + scaled
