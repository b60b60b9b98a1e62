"""An audit: a reference of the user's own called on small drawn cases, judged, and explained where it is wrong."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..frontends.python import plain_function
from ..frontends.python.events import Expression, text_of_file, where_of
from ..model.case import Case
from ..model.failures import text_of
from ..model.intermediates import PRODUCTS
from ..model.number import listed
from ..model.report import Diagnosis, Opinion, Where
from ..numerics.compare import compare
from ..numerics.declared_precision import precision_of
from ..numerics.evidence import LayoutRun, Measured
from ..numerics.identities import identities
from ..numerics.locate import locate
from ..runtime.trace import Trace
from ..targets.bind import statements_of
from ..targets.find import family_of, find_function
from .attempts import Attempt, ReferenceSearch
from .calling import CallConvention, Callee, in_words, is_near
from .explain import AT_USE, AuditExplanation, Located, Sight
from .formulas import INPUTS, Mistake, due_in, role_of

_SEEDS = (0, 1, 2)
_OTHER_SCALE = 0.3
_LONGEST_WORDS = 120
_SWAPS = (("k", "v"), ("q", "k"), ("q", "v"), ("v", "do"), ("q", "do"), ("o", "v"), ("o", "do"))
_MEANINGS = {"keep": "True where a key is seen", "hide": "True where a key is hidden", "additive": "-inf"}


@dataclass(frozen=True)
class Audit:
    """What became of a reference."""

    callee: Callee
    attempt: Attempt
    """How it is called, in its first wrong run, else in the first."""
    runs: tuple[LayoutRun, ...]
    taken: tuple[str, ...] = ()
    explanation: AuditExplanation | None = None
    """None where all is right."""
    opinions: tuple[Opinion, ...] = ()

    @property
    def is_right(self) -> bool:
        return not self.attempt.misshapen and all(run.matches for run in self.runs)


def audit(
    subject: Any, family: str | None = None, options: Mapping[str, Any] | None = None, *, judges: bool = True
) -> Audit:
    """Calls a reference on small cases, with and without a causal mask, and says what is wrong with it.

    Args:
        subject: the word of a function, or a function.
        options: further options of the cases, by name.
        judges: whether autograd is asked too, and further draws.

    Raises:
        UsageFailure: there is no such function, or nothing can be passed for a parameter.
        TargetFailure: it raises in whatever way it is called, or returns nothing that can be told.
    """
    callee = Callee(find_function(subject))
    search = ReferenceSearch(callee, family or family_of(callee.takes), options or {})
    best = search.best()
    taken = list(_taken(search, best))
    runs: list[tuple[Attempt, LayoutRun]] = []
    for how in _settings(search, best.how):
        before = len(runs)
        # Beside a check one draw is enough: it judges the reference on its own values too.
        for seed in _SEEDS if judges else _SEEDS[:1]:
            try:
                runs.append(_run(search, how, best.drawn.case, seed))
            except Exception as error:
                said = f"{type(error).__name__}: {text_of(error)}"[:_LONGEST_WORDS]
        if len(runs) == before:
            taken.append(f"it was not judged {how.setting}: it raised {said}")
    attempt = next((one for one, run in runs if not run.matches or one.misshapen), runs[0][0])
    opinions = tuple(_opinions(search, attempt)) if judges else ()
    found = Audit(callee, attempt, tuple(run for _, run in runs), tuple(taken), None, opinions)
    if found.is_right:
        return found
    swapped = _swapped(search, best) if best.wrong else None
    return replace(found, explanation=swapped or search.explained(attempt))


def _settings(search: ReferenceSearch, how: CallConvention) -> Iterator[CallConvention]:
    """What it is judged with: as it was found, and what else it takes: the other mask, another scale."""
    takes = search.callee.takes
    yield how
    if search.family != "lazy" and ("causal" in takes or how.mask):
        yield replace(how, causal=not how.causal)
    if "scale" in takes:
        yield replace(how, scale=_OTHER_SCALE)


def _taken(search: ReferenceSearch, best: Attempt) -> Iterator[str]:
    """How it is called, and what it does by itself."""
    how, callee = best.how, search.callee
    what = "numpy arrays" if how.library == "numpy" else "torch tensors"
    yield f"{what} of [{in_words(how.shapes)}]; its results are named by {best.called.order}"
    if how.mask:
        yield f"its mask is {_MEANINGS[how.mask]}"
    elif callee.masks[0]:
        yield f"no {callee.takes.get('mask', callee.takes.get('bias'))} was given: none that was tried fits"
    elif search.family != "lazy" and "causal" not in callee.takes and how.causal:
        yield "it is always causal: it has no parameter for it"
    if how.scale == 1.0:
        yield "its scale is 1, not 1 / sqrt(head dim): it is right for that one"
    if callee.unknown:
        yield f"{', '.join(f'{name}=None' for name in callee.unknown)}, whose meaning is not known"


def _run(search: ReferenceSearch, how: CallConvention, like: Case, seed: int) -> tuple[Attempt, LayoutRun]:
    """One run of a case of such sizes, compared with the formulas."""
    sizes = {"batch": like.batch, "heads": like.heads, "seqlen": like.seqlen_q, "head_dim": like.head_dim}
    drawn = search.drawn(how, seed, sizes)
    attempt = search.attempt(how, drawn)
    fitting = {name: attempt.called.results[name] for name in attempt.comparable if name not in attempt.misshapen}
    trace = Trace(fitting, dict.fromkeys(fitting, "exported"))
    comparison = compare(drawn.case, drawn.x, trace, precision_of("float32", "ieee"))
    kept = tuple(identities(drawn.case, drawn.x, trace, comparison))
    measured = Measured(lambda: drawn.x, trace, comparison, locate(drawn.x, trace, comparison), kept)
    beyond = frozenset(name for name, finding in comparison.findings.items() if finding.mismatched)
    return replace(attempt, beyond=beyond), LayoutRun(f"{how.setting} seed={seed}", (), measured, None)


def _opinions(search: ReferenceSearch, attempt: Attempt) -> Iterator[Opinion]:
    """What the formulas, and float64 autograd through the O that it computes itself, say of the results of one run."""
    results, wrong = attempt.called.results, attempt.wrong
    right = tuple(name for name in attempt.comparable if name not in wrong)
    yield Opinion(judge="the built-in formulas, float64", right=right, wrong=wrong)
    if ".apply(" in search.text:  # a backward that somebody wrote is no judge
        return
    try:
        gradients = search.attempt(replace(attempt.how, leaves=True), attempt.drawn).called.by_autograd
    except Exception:  # a stranger's function may raise anything, where its inputs require grad
        return
    judged = [name for name in gradients if name in results]
    right = tuple(name for name in judged if is_near(results[name], gradients[name]))
    if judged:
        wrong = tuple(name for name in judged if name not in right)
        yield Opinion(judge="autograd of its own O", right=right, wrong=wrong)


def _swapped(search: ReferenceSearch, best: Attempt) -> AuditExplanation | None:
    """Two parameters of which each is used as the other, if all is right then."""
    takes, given = search.callee.takes, best.drawn.given
    for one, other in _SWAPS:
        if one not in takes or other not in takes:
            continue
        try:
            attempt = search.attempt(best.how, best.drawn, {one: given[other], other: given[one]})
        except Exception:
            continue
        mine, others = f"d{one.upper()}", f"d{other.upper()}"
        came = attempt.called.results
        turned = {{mine: others, others: mine}.get(name, name): result for name, result in came.items()}
        for results in (came, turned):
            if not replace(attempt, called=replace(attempt.called, results=results)).wrong:
                a, b = takes[one], takes[other]
                words = f"the parameter {a} is used as {b}, and {b} as {a}"
                fix = f"exchange {a} and {b} in its signature, or where they are used"
                return AuditExplanation((Located(Mistake("", "swapped", words, fix), None, best.wrong),))
    return None


# --- what is told of it


def diagnoses_of(made: Audit) -> tuple[Diagnosis, ...]:
    """What is wrong with a reference, in the order of the formulas; empty where nothing is, or nothing is known."""
    if made.explanation is None:
        return ()
    groups: dict[tuple[str, str], list[Located]] = {}
    for located in made.explanation.located:  # the same mistake in two formulas is told once, with both lines
        name, words = located.mistake.of, located.mistake.came
        words = words.replace(name, "{}") if name in ("dQ", "dK", "dV") else words
        groups.setdefault((located.mistake.key, words), []).append(located)
    found = list[Diagnosis]()
    for (_, words), group in groups.items():
        found.append(_diagnosis(made, made.explanation, words, group, is_first=not found))
    return tuple(found)


def _diagnosis(
    made: Audit, explanation: AuditExplanation, words: str, group: list[Located], *, is_first: bool
) -> Diagnosis:
    mistake, own, results = group[0].mistake, [one.mistake.of for one in group], dict[str, None]()
    source, places, evidence = made.callee.found.source, list[Expression | None](), list[str]()
    elsewhere = _elsewhere(made, group[0])
    for located in group:
        results |= dict.fromkeys(located.results)
        places.append(None if elsewhere and _shows_late(located) else located.at)
    due = [row for name, row in due_in(made.attempt.drawn.case.family).items() if name in own]
    if due:
        evidence.append(f"due: {'; '.join(due)}")
    rebound = _rebound(made, explanation, places[0]) if is_first and places[0] is not None else None
    if rebound is not None:
        places.insert(0, rebound.at)
        held = f"holds {rebound.form.words} from line {rebound.at.line} on"
        evidence.append(f"the parameter {rebound.at.name} {held}")
    evidence.append(f"with it every element of {listed(list(results))} is what came")
    fix = mistake.fix.replace(mistake.of, listed(own)) if len(own) > 1 else mistake.fix
    masked = next((one.at for one in explanation.holdings if one.mask == ""), None)
    if mistake.key == "mask/left-out" and masked is not None:
        fix = f"make it of {masked.name}, which is masked in line {masked.line}"
    wheres = [where_of(made.callee.function, source.file, at) for at in places]
    return Diagnosis(
        fault=f"reference/{mistake.key}",
        fault_class="reference",
        summary=words.replace("{}", listed(own)),
        explained=1.0,
        evidence=tuple(evidence),
        where=tuple(where for where in wheres if where is not None) or elsewhere,
        fix=fix,
        also=not is_first,
    )


def _rebound(made: Audit, explanation: AuditExplanation, before: Expression) -> Sight | None:
    """A parameter that was made another input before a mistake: what its name says is not what it holds."""
    says = {own: "O" if name == "o" else name for name, own in made.callee.takes.items()}
    for sight in explanation.holdings:
        role, kind = says.get(sight.at.name), sight.form.kind
        if role in (*INPUTS, "O") and kind in (*INPUTS, *PRODUCTS) and kind != role and sight.at.line <= before.line:
            return sight
    return None


def _shows_late(located: Located) -> bool:
    """Whether it shows in results alone, and not where it is made; or in no value, but in the call of autograd."""
    mistake, form = located.mistake, located.form
    is_made = mistake.of in ("P", "dP", "delta", "dS") and mistake.key not in AT_USE
    return mistake.key == "do/other" or (is_made and form is not None and form.kind in PRODUCTS)


def _elsewhere(made: Audit, located: Located) -> tuple[Where, ...]:
    """Where a mistake is made that no value shows: the return, the call of autograd, or a variable by its name."""
    key, of, source = located.mistake.key, located.mistake.of, made.callee.found.source
    assigned, returns, differentiated = dict[str, set[int]](), list[int](), list[int]()
    for node in statements_of(plain_function(made.callee.function)):
        if isinstance(node, ast.Return):
            returns.append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("backward", "grad"):
                differentiated.append(node.lineno)
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    assigned.setdefault(role_of(target.id) or "", set()).add(node.lineno)
    line, note = None, ""
    if key == "swapped":
        line = source.line
    elif key in ("order", "do/other"):
        line = max(differentiated if key == "do/other" and differentiated else returns, default=None)
    else:
        note = "by its name"
        for role in (of, "dS") if of == "delta" else (of,):
            if line is None and len(assigned.get(role, ())) == 1:
                line = min(assigned[role])
    lines = text_of_file(made.callee.function).splitlines()
    if line is None or not lines:
        return ()
    return (Where(source.file, line, lines[line - 1].strip(), kernel=source.name, note=note),)


def known_of(made: Audit) -> tuple[str, ...]:
    """What is known of results that no mistake explains."""
    explanation, found = made.explanation, list[str]()
    for name, shape in made.attempt.misshapen.items():
        found.append(f"what it returns as {name} has the shape {list(shape)}")
    if explanation is None or not explanation.unexplained:
        return tuple(found)
    found.append(f"no known formula gives its {listed(list(explanation.unexplained))}")
    strange = explanation.strange
    where = where_of(made.callee.function, made.callee.found.source.file, strange)
    if strange is not None and where is not None:
        due = due_in(made.attempt.drawn.case.family)[role_of(strange.name) or ""]
        place = f"{strange.name} (line {where.line}: {where.code})"
        found.append(f"the first variable that matches no formula is {place}, and {due} is due")
    if any(one.judge.startswith("autograd") and not one.wrong for one in made.opinions):
        words = "it computes another attention than scale * Q K^T, softmax, P V"
        found.append(f"its gradients are right for its own O: {words}")
    return tuple(found)
