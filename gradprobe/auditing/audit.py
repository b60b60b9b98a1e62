"""An audit: a reference of the user's own called on small drawn cases, judged, and explained where it is wrong."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from ..frontends import Event, events
from ..frontends.python import plain_function
from ..inputs.draw import draw
from ..inputs.tensor_layouts import place
from ..model.assignment import in_words
from ..model.case import Case
from ..model.failures import Failure
from ..model.number import listed
from ..model.report import Diagnosis, Where
from ..model.resolution import resolve
from ..numerics.compare import attention_of, compare
from ..numerics.declared_precision import precision_of
from ..numerics.evidence import LayoutRun, Measured
from ..numerics.locate import locate
from ..reference import Attention, manual_attention_backward
from ..runtime.run import run_target
from ..runtime.trace import Trace
from ..source.text import python_file
from ..targets.bind import statements_of
from ..targets.find import Target, find_target
from .calling import ORDERS, SHAPES, CallConvention, ReferenceCall, Values
from .explain import AuditExplanation, Located, explain
from .formulas import RESULTS, Mistake, due_in, role_of

# Sizes of axes none of which another axis, or a product of two, has: values tell by their shapes what they are of. And
# some references take whole blocks, or powers of two.
_SIZES = (
    {"batch": 2, "heads": 3, "seqlen": 7, "head_dim": 5},
    {"batch": 1, "heads": 2, "seqlen": 64, "head_dim": 16},
    {"batch": 1, "heads": 2, "seqlen": 128, "head_dim": 64},
)
_OTHER_SCALE = 0.3
# What a function says of its tensors that have no batches, or neither batches nor heads.
_FEWER = r"(?:single|one)[ -]head|[\[(](?:\w+, *){1,2}(?:D|d_k|d_head|head_dim|dim)[\])]"
_SWAPS = (("k", "v"), ("q", "k"), ("q", "v"), ("o", "do"))
_OPTIONS = ("family", "causal", "scale", "window", "softcap", "align")
_MEANINGS = {"keep": "True where a key is seen", "hide": "True where a key is hidden", "additive": "-inf"}


@dataclass(frozen=True)
class Attempt:
    """One run of a reference on a drawn case."""

    how: CallConvention
    sizes: Mapping[str, int]
    case: Case
    measured: Measured
    unfit: Values
    """The results of another shape than is due."""

    @property
    def wrong(self) -> tuple[str, ...]:
        findings = self.measured.comparison.findings
        return tuple(name for name in RESULTS if name in self.unfit or (name in findings and findings[name].mismatched))


@dataclass(frozen=True)
class Audit:
    """What became of a reference."""

    target: Target
    attempt: Attempt
    """Its first wrong run, else the first."""
    runs: tuple[LayoutRun, ...]
    taken: tuple[str, ...]
    """How it is called, and what it does by itself."""
    explanation: AuditExplanation | None
    """None where all is right."""

    @property
    def is_right(self) -> bool:
        return self.explanation is None


def audit(
    subject: str | Callable[..., Any],
    family: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    seeds: int = 3,
) -> Audit:
    """Calls a reference on small cases, with and without a causal mask, and says what is wrong with it.

    Args:
        subject: the word of a function, or a function.
        options: further options of the cases, by name.
        seeds: how often each setting is drawn.

    Raises:
        UsageFailure: there is no such function, or nothing can be passed for a parameter.
        TargetFailure: it raises in whatever way it is called, or returns nothing that can be told.
    """
    search = ReferenceSearch(find_target(subject, family), options or {})
    best = search.best()
    taken, attempts = [*_taken(search.target, best)], [best]
    for how, seed in islice(product(search.settings(best.how), range(seeds)), 1, None):
        try:
            attempts.append(search.attempt(how, best.sizes, seed))
        except Failure as failure:
            taken.append(f"it was not judged {how.setting} with seed {seed}: {failure}")
    runs = [LayoutRun(f"{each.how.setting} seed={each.case.seed}", (), each.measured, None) for each in attempts]
    attempt = next((each for each in attempts if each.wrong or not each.measured.matches), None)
    explanation = None
    if attempt is not None:
        explanation = (search.swapped(best) if best.wrong else None) or search.explained(attempt)
    return Audit(search.target, attempt or best, tuple(runs), tuple(taken), explanation)


def _taken(target: Target, best: Attempt) -> Iterator[str]:
    """How it is called, and what it does by itself."""
    how = best.how
    what = "numpy arrays" if how.library == "numpy" else "torch tensors"
    yield f"{what} of {in_words(how.shapes)}"
    if how.order:
        yield f"its results are taken for {listed(how.order.split())}"
    if how.mask:
        yield f"its mask is {_MEANINGS[how.mask]}"
    elif target.family != "lazy" and "causal" not in target.takes and how.causal:
        yield "it is always causal: it has no parameter for it"
    if how.scale == 1.0:
        yield "its scale is 1, not 1 / sqrt(head dim): it is right for that one"


class ReferenceSearch:
    """Calls one reference in one way after another."""

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        self.target, self._options = target, options
        try:
            self._text = inspect.getsource(plain_function(target.function))
        except (OSError, TypeError):
            self._text = ""
        self._is_differentiated = re.search(r"\.backward\(|autograd|\.grad\b|vjp", self._text) is not None

    def best(self) -> Attempt:
        """The first that is right, else the first whose mistakes are all known, else the first that runs.

        Raises:
            Failure: it raises in every way; the first that is no error of types.
        """
        raised = list[Failure]()
        for sizes in _SIZES:
            attempts = list[Attempt]()
            for how in self._ways():
                first = attempts[0].how if attempts else how
                # With fewer axes only where it does not run with more, or says so.
                is_fewer = len(how.shapes) < len(first.shapes) and not re.search(_FEWER, self._text, re.IGNORECASE)
                if is_fewer or how.library != first.library:
                    continue
                try:
                    attempts.append(self.attempt(how, sizes))
                except Failure as failure:
                    raised.append(failure)
                    continue
                if not attempts[-1].wrong:
                    return attempts[-1]
            for attempt in attempts:
                if not self.explained(attempt).unexplained:
                    return attempt
            if attempts:
                return attempts[0]
        raise next((each for each in raised if not isinstance(each.__cause__, TypeError)), raised[0])

    def _ways(self) -> Iterator[CallConvention]:
        """The likelier first, each with what the reference may do by itself."""
        takes, family = self.target.takes, self.target.family
        libraries = ("numpy", "torch") if re.search(r"\bnp\.|numpy", self._text) else ("torch", "numpy")
        takes_mask = "mask" in takes or "mask" in takes.get("bias", "")
        masks = ("keep", "hide", "additive", "") if takes_mask and "causal" not in takes else ("",)
        scales = (None,) if family == "lazy" or "scale" in takes else (None, 1.0)
        leaves = self._is_differentiated and "requires_grad" not in self._text
        says_causal = "causal" not in takes and re.search(r"tril|triu|causal|mask", self._text)
        for library, shapes, mask, scale in product(libraries, SHAPES, masks, scales):
            # A causal mask shows what a mask means; without that meaning none is laid.
            settings = (True,) if family == "lazy" or mask else (True, False) if says_causal else (False, True)
            for causal in settings:
                yield CallConvention(library, shapes, mask, leaves, causal=causal, scale=scale)

    def settings(self, how: CallConvention) -> Iterator[CallConvention]:
        """What it is judged with: as it was found, and what else it takes: the other mask, another scale."""
        takes = self.target.takes
        yield how
        if self.target.family != "lazy" and ("causal" in takes or how.mask):
            yield replace(how, causal=not how.causal)
        if "scale" in takes:
            yield replace(how, scale=_OTHER_SCALE)

    def attempt(
        self, how: CallConvention, sizes: Mapping[str, int], seed: int = 0, swap: tuple[str, str] | None = None
    ) -> Attempt:
        """One run; of results without names, by those by which the most are right.

        Args:
            swap: two parameters that are given each other's values.

        Raises:
            Failure: from `run_target`.
        """
        case, values = self._drawn(how, sizes, seed)
        call = ReferenceCall(self.target, how)
        target = call.target()
        if swap is not None:
            first, other = swap
            target = replace(target, takes={**target.takes, first: target.takes[other], other: target.takes[first]})
        trace = run_target(target, case, place(values, ())).trace
        came = trace.values if trace is not None else {}
        results = {name: came[name] for name in RESULTS if name in came}
        x, found = attention_of(case, values), list[Attempt]()
        is_open = call.is_by_order and not how.order and not call.unfit
        for order in ORDERS[len(results)].split("|") if is_open else [" ".join(results)]:
            measured = _measured(case, x, dict(zip(order.split(), results.values(), strict=True)))
            own = replace(how, order=order) if is_open else how
            found.append(Attempt(own, sizes, case, measured, call.unfit))
            if not found[-1].wrong:
                break
        return min(found, key=lambda each: len(each.wrong))

    def _drawn(self, how: CallConvention, sizes: Mapping[str, int], seed: int) -> tuple[Case, Values]:
        """A case, its values in float64 with what a forward saves."""
        fewer = {name: 1 for letter, name in (("b", "batch"), ("h", "heads")) if letter not in how.shapes}
        takes_bias = "bias" in self.target.required and not how.mask
        options = {**sizes, **fewer, "bias": takes_bias or None, **self._options, "seed": seed}
        options |= {"causal": how.causal} if self.target.family != "lazy" else {}
        options |= {"scale": how.scale} if how.scale is not None else {}
        case = resolve(options, self.target.family, takes_bias=takes_bias)
        values = dict[str, Any]()
        for name, value in draw(case).items():
            values[name] = value.double() if value.is_floating_point() else value
        known: dict[str, Any] = {name: getattr(case, name) for name in _OPTIONS}
        saved = manual_attention_backward(**values, **known)
        return case, values | {"o": saved["O"], "lse": saved["LSE"], "delta": saved["delta"]}

    def explained(self, attempt: Attempt) -> AuditExplanation:
        """Why an attempt is wrong; the call is made once more and watched."""
        values, again = list[Event](), attempt
        try:
            with events(self.target.function, self.target.source.file) as values:
                again = self.attempt(attempt.how, attempt.sizes, attempt.case.seed)
        except Exception:  # its file is not what runs, as after an edit: then no line is known
            values = []
        results = {}
        for name, result in {**again.measured.trace.values, **again.unfit}.items():
            results[name] = result.detach().double().numpy()
        return explain(
            again.measured.x, values, results, again.wrong,
            by_autograd=self._is_differentiated or not self.target.is_backward,
        )  # fmt: skip

    def swapped(self, best: Attempt) -> AuditExplanation | None:
        """Two parameters of which each is used as the other, if all is right then."""
        takes = self.target.takes
        for first, other in _SWAPS:
            if not {first, other} <= takes.keys():
                continue
            try:
                attempt = self.attempt(best.how, best.sizes, swap=(first, other))
            except Failure:
                continue
            names = {f"d{first.upper()}": f"d{other.upper()}", f"d{other.upper()}": f"d{first.upper()}"}
            turned = {names.get(name, name): result for name, result in attempt.measured.trace.values.items()}
            if not attempt.wrong or _measured(attempt.case, attempt.measured.x, turned).comparison.matches:
                a, b = takes[first], takes[other]
                words = f"the parameter {a} is used as {b}, and {b} as {a}"
                fix = f"exchange {a} and {b} in its signature, or where they are used"
                return AuditExplanation((Located(Mistake("", "swapped", words, fix), None, best.wrong),))
        return None


def _measured(case: Case, x: Attention, results: Values) -> Measured:
    """Results by the formulas, to the digits of float32."""
    trace = Trace(results, dict.fromkeys(results, "exported"))
    comparison = compare(case, x, trace, precision_of("float32", "ieee"))
    return Measured(lambda: x, trace, comparison, locate(x, trace, comparison))


# --- what is told of it


def diagnoses_of(made: Audit) -> tuple[Diagnosis, ...]:
    """What is wrong with a reference, in the order of the formulas; empty where nothing is, or nothing is known."""
    found = list[Diagnosis]()
    for located in made.explanation.located if made.explanation is not None else ():
        mistake = located.mistake
        due = due_in(made.attempt.case.family).get(mistake.of)
        said = f"with it every element of {listed(located.results)} is what came"
        where = located.at
        found.append(Diagnosis(
            f"reference/{mistake.key}", "reference", mistake.came, 1.0, (f"due: {due}", said) if due else (said,),
            _elsewhere(made, located) or ((where,) if where is not None else ()), mistake.fix, also=bool(found),
        ))  # fmt: skip
    return tuple(found)


def _elsewhere(made: Audit, located: Located) -> tuple[Where, ...]:
    """Where a mistake is made that no value shows: the return, the call of autograd, or a variable by its name."""
    key, source = located.mistake.key, made.target.source
    found = {source.line} if key == "swapped" else set[int]()
    for node in statements_of(made.target.function):
        if key == "order":
            is_it = isinstance(node, ast.Return)
        elif key == "do/other":
            call = node.func if isinstance(node, ast.Call) else None
            is_it = isinstance(call, ast.Attribute) and call.attr in ("backward", "grad")
        else:
            name = node.targets[0] if isinstance(node, ast.Assign) else None
            is_it = located.is_late and isinstance(name, ast.Name) and role_of(name.id) == located.mistake.of
        if is_it and isinstance(node, (ast.stmt, ast.expr)):
            found.add(node.lineno)
    lines = python_file(source.file).lines
    if not found or not lines or (len(found) > 1 and key not in ("order", "do/other")):
        return ()
    return (Where(source.file, max(found), lines[max(found) - 1].strip(), kernel=source.name),)


def known_of(made: Audit) -> tuple[str, ...]:
    """What is known of results that no mistake explains."""
    found = list[str]()
    for name, result in made.attempt.unfit.items():
        found.append(f"what it returns as {name} has the shape {list(result.shape)}")
    if made.explanation is not None and made.explanation.unexplained:
        found.append(f"no known formula gives its {listed(list(made.explanation.unexplained))}")
    return tuple(found)
