"""What an audit says: its mistakes as diagnoses with lines, and what is known of what no mistake explains."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from ..frontends.python import plain_function
from ..frontends.python.expressions import Expression
from ..frontends.python.watching import text_of_file
from ..model.intermediates import PRODUCTS
from ..model.number import listed
from ..model.report import Diagnosis, Where
from ..targets.naming import LoadedSource
from ..targets.returned import statements_of
from .audit import Audit
from .explain import AT_USE, AuditExplanation, Located, Sight
from .formulas import Mistake, due_in, role_of

_INPUTS = ("q", "k", "v", "do")


def diagnoses_of(audit: Audit) -> tuple[Diagnosis, ...]:
    """What is wrong with a reference, in the order of the formulas; empty where nothing is, or nothing is known."""
    explanation = audit.explanation
    if explanation is None:
        return ()
    groups: dict[tuple[str, str], list[Located]] = {}
    for located in explanation.located:  # the same mistake in two formulas is told once, with both lines
        name, words = located.mistake.of, located.mistake.came
        words = words.replace(name, "{}") if name in ("dQ", "dK", "dV") else words
        groups.setdefault((located.mistake.key, words), []).append(located)
    found = [
        _diagnosis(audit, explanation, words, group, number)
        for number, ((_, words), group) in enumerate(groups.items())
    ]
    return tuple(found)


def _diagnosis(audit: Audit, explanation: AuditExplanation, words: str, group: list[Located], number: int) -> Diagnosis:
    first, own = group[0], [one.mistake.of for one in group]
    results = list(dict.fromkeys(name for one in group for name in one.results))
    fix = first.mistake.fix.replace(first.mistake.of, listed(own)) if len(own) > 1 else first.mistake.fix
    masked = next((one.at for one in explanation.holdings if one.mask == ""), None)
    if first.mistake.key == "mask/left-out" and masked is not None:
        fix = f"make it of {masked.name}, which is masked in line {masked.line}"
    elsewhere = _elsewhere(audit, first.mistake)
    places = [None if _shows_late(one) and elsewhere else one.at for one in group]
    rebound = None if number else _rebound(audit, explanation, places[0])
    rebinding = []
    if rebound is not None:
        places.insert(0, rebound.at)
        rebinding = [f"the parameter {rebound.at.name} holds {rebound.form.words} from line {rebound.at.line} on"]
    found, formulas = audit.callee.found, due_in(audit.attempt.drawn.case.family)
    wheres = tuple(where for at in places if (where := where_of(found.source, found.function, at)) is not None)
    due = [formulas[name] for name in own if name in formulas]
    return Diagnosis(
        fault=f"reference/{first.mistake.key}",
        fault_class="reference",
        summary=words.replace("{}", listed(own)),
        explained=1.0,
        evidence=(
            *([f"due: {'; '.join(due)}"] if due else []),
            *rebinding,
            f"with it every element of {listed(results)} is what came",
        ),
        where=wheres or elsewhere,
        fix=fix,
        also=number > 0,
    )


def _rebound(audit: Audit, explanation: AuditExplanation, before: Expression | None) -> Sight | None:
    """A parameter that was made another input before a mistake: what its name says is not what it holds."""
    takes = {own: name for name, own in audit.callee.takes.items()}
    for sight in explanation.holdings if before is not None else ():
        says = "O" if takes.get(sight.at.name) == "o" else takes.get(sight.at.name)
        is_other = sight.form.kind in (*_INPUTS, *PRODUCTS) and sight.form.kind != says
        if says in (*_INPUTS, "O") and is_other and before is not None and sight.at.line <= before.line:
            return sight
    return None


def where_of(source: LoadedSource, function: Callable[..., Any], at: Expression | None) -> Where | None:
    """The line of an expression in a function's file, with what it is underlined; None without one."""
    lines = text_of_file(function).splitlines()
    if at is None or not lines:
        return None
    line = lines[at.line - 1].encode()
    start = len(line[: at.column].decode(errors="ignore"))
    end = len(line[: at.end_column if at.end_line == at.line else None].decode(errors="ignore"))
    text = line.decode()
    before = len(text) - len(text.lstrip())
    return Where(source.file, at.line, text.strip(), max(start - before, 0), end - start, at.function)


def _shows_late(located: Located) -> bool:
    """Whether it shows in results alone, and not where it is made; or in no value, but in the call of autograd."""
    mistake, form = located.mistake, located.form
    is_made = mistake.of in ("P", "dP", "delta", "dS") and mistake.key not in AT_USE
    return mistake.key == "do/other" or (is_made and form is not None and form.kind in PRODUCTS)


def _elsewhere(audit: Audit, mistake: Mistake) -> tuple[Where, ...]:
    """Where a mistake is made that no value shows: the return, the call of autograd, or a variable by its name."""
    function = plain_function(audit.callee.function)
    if mistake.key == "swapped":
        return _whole_line(audit, audit.callee.found.source.line)
    if mistake.key in ("order", "do/other"):
        return _whole_line(audit, _return_line(function, backward=mistake.key == "do/other"))
    roles = (mistake.of, "dS") if mistake.of == "delta" else (mistake.of,)
    for role in roles:
        lines = {line for line, name in _assigned(function) if role_of(name) == role}
        if len(lines) == 1:
            return _whole_line(audit, lines.pop(), "by its name")
    return ()


def _return_line(function: Callable[..., Any], *, backward: bool) -> int | None:
    """The line of a function's last return statement; with `backward`, of its last call of that, where it has one."""
    nodes = list(statements_of(function))
    returns = [node.lineno for node in nodes if isinstance(node, ast.Return)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    grads = [
        one.lineno for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr in ("backward", "grad")
    ]
    return max((grads if backward else []) or returns, default=None)


def _assigned(function: Callable[..., Any]) -> Iterator[tuple[int, str]]:
    for node in statements_of(function):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            yield from ((node.lineno, target.id) for target in targets if isinstance(target, ast.Name))


def _whole_line(audit: Audit, line: int | None, note: str = "") -> tuple[Where, ...]:
    source, lines = audit.callee.found.source, text_of_file(audit.callee.function).splitlines()
    if line is None or not lines:
        return ()
    return (Where(source.file, line, lines[line - 1].strip(), kernel=source.name, note=note),)


def known_of(audit: Audit) -> tuple[str, ...]:
    """What is known of results that no mistake explains."""
    explanation = audit.explanation
    found = [f"what it returns as {name} has the shape {list(shape)}" for name, shape in audit.misshapen.items()]
    if explanation is None:
        return tuple(found)
    if not explanation.unexplained:
        return tuple(found)
    found.append(f"no known formula gives its {listed(list(explanation.unexplained))}")
    if (strange := explanation.strange) is not None:
        where = where_of(audit.callee.found.source, audit.callee.function, strange)
        due = due_in(audit.attempt.drawn.case.family).get(role_of(strange.name) or "")
        place = f" (line {where.line}: {where.code})" if where else ""
        words = f"the first variable that matches no formula is {strange.name}{place}"
        found.append(f"{words}, and {due} is due" if due else words)
    if any(one.judge.startswith("autograd") and not one.wrong for one in audit.opinions):
        words = "it computes another attention than scale * Q K^T, softmax, P V"
        found.append(f"its gradients are right for its own O: {words}")
    return tuple(found)
