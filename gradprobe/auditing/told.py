"""What an audit says: its mistakes as diagnoses with lines, and the names that say one thing and hold another."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..model.intermediates import PRODUCTS, symbol
from ..model.number import listed
from ..model.report import Diagnosis, NameMismatch, Where
from ..source.expressions import Expression
from ..targets.naming import LoadedSource, plain_function
from ..targets.returned import statements_of
from .audit import Audit
from .explain import AT_USE, AuditExplanation, Located, Sight
from .forms import Mistake, due_in, role_of
from .watching import lines_of

_MOST_HELD = 6
_INPUTS = ("q", "k", "v", "do")
# Scores, probabilities and their steps go by one name in much code.
_ALIKE = ({"S", "P", "LSE"}, {"dP", "dS"})


def diagnoses_of(audit: Audit) -> tuple[Diagnosis, ...]:
    """What is wrong with a reference, in the order of the formulas; empty where nothing is, or nothing is known."""
    explanation = audit.explanation
    if explanation is None:
        return ()
    if explanation.swapped is not None:
        return (_of_swap(audit, explanation.swapped),)
    groups: dict[tuple[str, str], list[Located]] = {}
    for located in explanation.located:  # the same mistake in two formulas is told once, with both lines
        name, words = located.mistake.of, located.mistake.came
        words = words.replace(name, "{}") if name in ("dQ", "dK", "dV") else words
        groups.setdefault((located.mistake.key, words), []).append(located)
    return tuple(
        _diagnosis(audit, explanation, words, group, also=number > 0)
        for number, ((_, words), group) in enumerate(groups.items())
    )


def _diagnosis(
    audit: Audit, explanation: AuditExplanation, words: str, group: list[Located], *, also: bool
) -> Diagnosis:
    first, own = group[0], [one.mistake.of for one in group]
    results = list(dict.fromkeys(name for one in group for name in one.results))
    fix = first.mistake.fix.replace(first.mistake.of, listed(own)) if len(own) > 1 else first.mistake.fix
    masked = next((one for one in explanation.holdings if one.words == "S, masked"), None)
    if first.mistake.key == "mask/left-out" and masked is not None:
        fix = f"make it of {masked.at.name}, which is masked in line {masked.at.line}"
    is_loss = first.mistake.key == "do/other"  # which no value shows, but the call of autograd
    places = [None if is_loss or (_is_inherited(one) and _elsewhere(audit, one.mistake)) else one.at for one in group]
    rebound = None if also else _rebound(audit, explanation, places[0])
    if rebound is not None:
        places.insert(0, rebound.at)
    found, function = audit.callee.found, audit.callee.function
    wheres = tuple(where for at in places if (where := where_of(found.source, function, at)) is not None)
    formulas = due_in(audit.attempt.drawn.case.family)
    due = [formulas[name] for name in own if name in formulas]
    return Diagnosis(
        fault=f"reference/{first.mistake.key}",
        fault_class="reference",
        summary=words.replace("{}", listed(own)),
        explained=1.0,
        evidence=(
            f"due: {'; '.join(due) or 'float32 or wider'}",
            *([_rebinding(rebound)] if rebound is not None else []),
            *_seen_of(audit, first),
            f"with it every element of {listed(results)} is what came",
        ),
        where=wheres or _elsewhere(audit, first.mistake),
        fix=fix,
        also=also,
    )


def _seen_of(audit: Audit, located: Located) -> Iterator[str]:
    """What of P is wrong, in numbers."""
    if located.form is None or located.form.kind != "P":
        return
    p = located.form.values
    above = np.abs(p[np.broadcast_to(~np.tril(np.ones(p.shape[-2:], bool)), p.shape)])
    if audit.attempt.drawn.x.causal and above.max(initial=0) > 0:
        yield f"its entries above the diagonal are up to {above.max():.2g}, where 0 is due"
    sums = np.nan_to_num(p.sum(-1))
    if np.abs(sums - 1).max() > 1e-6:
        yield f"its rows sum to {sums.min():.3g} to {sums.max():.3g}, where 1 is due"


def _rebound(audit: Audit, explanation: AuditExplanation, before: Expression | None) -> Sight | None:
    """A parameter that was made another input before a mistake: what its name says is not what it holds."""
    takes = {own: name for name, own in audit.callee.takes.items()}
    for sight in explanation.holdings if before is not None else ():
        says = "O" if takes.get(sight.at.name) == "o" else takes.get(sight.at.name)
        is_other = sight.kind in (*_INPUTS, *PRODUCTS) and sight.kind != says
        if says in (*_INPUTS, "O") and is_other and before is not None and sight.at.line <= before.line:
            return sight
    return None


def _rebinding(sight: Sight) -> str:
    return f"the parameter {sight.at.name} holds {sight.words} from line {sight.at.line} on"


def where_of(source: LoadedSource, function: Callable[..., Any], at: Expression | None) -> Where | None:
    """The line of an expression in a function's file, with what it is underlined; None without one."""
    lines = lines_of(function)
    if at is None or not lines:
        return None
    line = lines[at.line - 1]
    start = len(line.encode()[: at.column].decode(errors="ignore"))
    ends = at.end_column if at.end_line == at.line else len(line.encode())
    end = len(line.encode()[:ends].decode(errors="ignore"))
    before = len(line) - len(line.lstrip())
    return Where(source.file, at.line, line.strip(), max(start - before, 0), end - start, at.function)


def _is_inherited(located: Located) -> bool:
    """Whether it shows in results alone, and not where it is made."""
    is_made = located.mistake.of in ("P", "dP", "delta", "dS") and located.mistake.key not in AT_USE
    return is_made and located.form is not None and located.form.kind in PRODUCTS


def _elsewhere(audit: Audit, mistake: Mistake) -> tuple[Where, ...]:
    """Where a mistake is made that no value shows: the return, the call of autograd, or a variable by its name."""
    function, note = plain_function(audit.callee.function), ""
    if mistake.key in ("order", "do/other"):
        line = _return_line(function, backward=mistake.key == "do/other")
    else:
        found = (_line_of_role(function, role) for role in (mistake.of, *(["dS"] if mistake.of == "delta" else [])))
        line, note = next((line for line in found if line is not None), None), "by its name"
    return _whole_line(audit, line, note)


def _return_line(function: Callable[..., Any], *, backward: bool = False) -> int | None:
    """The line of a function's last return statement; with `backward`, of its last call of that, where it has one."""
    lines: list[int] = []
    calls: list[int] = []
    for node in statements_of(function):
        if isinstance(node, ast.Return):
            lines.append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            calls += [node.lineno] if node.func.attr in ("backward", "grad") else []
    return max((calls if backward else []) or lines, default=None)


def _line_of_role(function: Callable[..., Any], role: str) -> int | None:
    """The line of the one statement that makes a variable named after an intermediate; None where there are others."""
    lines = {line for line, name in _assigned(function) if role_of(name) == role}
    return lines.pop() if len(lines) == 1 else None


def _assigned(function: Callable[..., Any]) -> Iterator[tuple[int, str]]:
    for node in statements_of(function):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            yield from ((node.lineno, target.id) for target in targets if isinstance(target, ast.Name))


def _whole_line(audit: Audit, line: int | None, note: str = "") -> tuple[Where, ...]:
    source, lines = audit.callee.found.source, lines_of(audit.callee.function)
    if line is None or not lines:
        return ()
    return (Where(source.file, line, lines[line - 1].strip(), kernel=source.name, note=note),)


def _of_swap(audit: Audit, pair: tuple[str, str]) -> Diagnosis:
    return Diagnosis(
        fault="reference/swapped",
        fault_class="reference",
        summary=f"the parameter {pair[0]} is used as {pair[1]}, and {pair[1]} as {pair[0]}",
        explained=1.0,
        evidence=("with the two exchanged every result is right",),
        where=_whole_line(audit, audit.callee.found.source.line),
        fix=f"exchange {pair[0]} and {pair[1]} in its signature, or where they are used",
    )


def known_of(audit: Audit) -> tuple[str, ...]:
    """What is known of results that no mistake explains."""
    explanation = audit.explanation
    found = [f"what it returns as {name} has the shape {list(shape)}" for name, shape in audit.misshapen.items()]
    if explanation is not None and explanation.varies:
        found.append("its results differ from call to call: it reads uninitialized memory, or draws random numbers")
    if explanation is None or explanation.swapped is not None or not explanation.unexplained:
        return tuple(found)
    strange = explanation.strange
    if strange is not None and (rebound := _rebound(audit, explanation, strange.at)) is not None:
        found.append(_rebinding(rebound))
    found.append(f"no known formula gives its {listed(list(explanation.unexplained))}")
    if strange is not None:
        where, due = (
            where_of(audit.callee.found.source, audit.callee.function, strange.at),
            due_in(audit.attempt.drawn.case.family).get(role_of(strange.at.name) or ""),
        )
        place = f" (line {where.line}: {where.code})" if where else ""
        found.append(f"the first variable that matches no formula is {strange.at.name}{place}")
        found[-1] += f", and {due} is due" if due else ""
    own = [one for one in audit.opinions if one.judge.startswith(("autograd", "finite differences of its"))]
    if any(not one.wrong for one in own):
        words = "it computes another attention than scale * Q K^T, softmax, P V"
        found.append(f"its gradients are right for its own O: {words}")
    return tuple(found)


def held_of(audit: Audit) -> tuple[NameMismatch, ...]:
    """Parameters and variables whose names say one thing, and hold another."""
    explanation, takes = audit.explanation, {own: name for name, own in audit.callee.takes.items()}
    if explanation is None:
        return ()
    if explanation.swapped is not None:
        symbols = [symbol(takes[own]) for own in explanation.swapped]
        pairs = zip(explanation.swapped, symbols, reversed(symbols), strict=True)
        return tuple(NameMismatch(name=own, says=says, holds=f"used as {other}") for own, says, other in pairs)
    by_name: dict[str, list[Sight]] = {}
    for held in explanation.holdings:
        by_name.setdefault(held.at.name, []).append(held)
    found: list[NameMismatch] = []
    for name, those in by_name.items():
        own = takes.get(name, "")
        named = {"o": "O", "lse": "LSE"}.get(own, own) or role_of(name)
        if named and any(_own_mistake(held) or not _agree(named, held.kind) for held in those):
            for held in {(held.at.line, held.words): held for held in those}.values():
                found.append(NameMismatch(name=name, says=symbol(named), holds=_holds(held), line=held.at.line))
    return tuple(found[:_MOST_HELD])


def _own_mistake(held: Sight) -> str:
    """That in the formula of what it holds, and not only inherited."""
    return next((mistake.came for mistake in held.mistakes if mistake.of == held.kind), "")


def _holds(held: Sight) -> str:
    return _own_mistake(held) or (f"{held.words}, made of what is wrong" if held.mistakes else held.words)


def _agree(says: str, kind: str) -> bool:
    """Whether a name fits what it holds, as far as that has one."""
    return not kind or says == kind or any({says, kind} <= group for group in _ALIKE)
