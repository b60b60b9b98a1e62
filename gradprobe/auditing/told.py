"""What an audit says: its mistakes as diagnoses with lines, and what is known of what no mistake explains."""

from __future__ import annotations

import ast

from ..frontends.python import plain_function
from ..frontends.python.events import Expression, text_of_file, where_of
from ..model.intermediates import PRODUCTS
from ..model.number import listed
from ..model.report import Diagnosis, Where
from ..targets.bind import statements_of
from .audit import Audit
from .explain import AT_USE, AuditExplanation, Located, Sight
from .formulas import INPUTS, due_in, role_of


def diagnoses_of(audit: Audit) -> tuple[Diagnosis, ...]:
    """What is wrong with a reference, in the order of the formulas; empty where nothing is, or nothing is known."""
    if audit.explanation is None:
        return ()
    groups: dict[tuple[str, str], list[Located]] = {}
    for located in audit.explanation.located:  # the same mistake in two formulas is told once, with both lines
        name, words = located.mistake.of, located.mistake.came
        words = words.replace(name, "{}") if name in ("dQ", "dK", "dV") else words
        groups.setdefault((located.mistake.key, words), []).append(located)
    found = list[Diagnosis]()
    for (_, words), group in groups.items():
        found.append(_diagnosis(audit, audit.explanation, words, group, is_first=not found))
    return tuple(found)


def _diagnosis(
    audit: Audit, explanation: AuditExplanation, words: str, group: list[Located], *, is_first: bool
) -> Diagnosis:
    mistake, own, results = group[0].mistake, [one.mistake.of for one in group], dict[str, None]()
    source, places, evidence = audit.callee.found.source, list[Expression | None](), list[str]()
    elsewhere = _elsewhere(audit, group[0])
    for located in group:
        results |= dict.fromkeys(located.results)
        places.append(None if elsewhere and _shows_late(located) else located.at)
    due = [row for name, row in due_in(audit.attempt.drawn.case.family).items() if name in own]
    if due:
        evidence.append(f"due: {'; '.join(due)}")
    rebound = _rebound(audit, explanation, places[0]) if is_first and places[0] is not None else None
    if rebound is not None:
        places.insert(0, rebound.at)
        held = f"holds {rebound.form.words} from line {rebound.at.line} on"
        evidence.append(f"the parameter {rebound.at.name} {held}")
    evidence.append(f"with it every element of {listed(list(results))} is what came")
    fix = mistake.fix.replace(mistake.of, listed(own)) if len(own) > 1 else mistake.fix
    masked = next((one.at for one in explanation.holdings if one.mask == ""), None)
    if mistake.key == "mask/left-out" and masked is not None:
        fix = f"make it of {masked.name}, which is masked in line {masked.line}"
    wheres = [where_of(audit.callee.function, source.file, at) for at in places]
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


def _rebound(audit: Audit, explanation: AuditExplanation, before: Expression) -> Sight | None:
    """A parameter that was made another input before a mistake: what its name says is not what it holds."""
    says = {own: "O" if name == "o" else name for name, own in audit.callee.takes.items()}
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


def _elsewhere(audit: Audit, located: Located) -> tuple[Where, ...]:
    """Where a mistake is made that no value shows: the return, the call of autograd, or a variable by its name."""
    key, of, source = located.mistake.key, located.mistake.of, audit.callee.found.source
    assigned, returns, differentiated = dict[str, set[int]](), list[int](), list[int]()
    for node in statements_of(plain_function(audit.callee.function)):
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
    lines = text_of_file(audit.callee.function).splitlines()
    if line is None or not lines:
        return ()
    return (Where(source.file, line, lines[line - 1].strip(), kernel=source.name, note=note),)


def known_of(audit: Audit) -> tuple[str, ...]:
    """What is known of results that no mistake explains."""
    explanation, found = audit.explanation, list[str]()
    for name, shape in audit.attempt.misshapen.items():
        found.append(f"what it returns as {name} has the shape {list(shape)}")
    if explanation is None or not explanation.unexplained:
        return tuple(found)
    found.append(f"no known formula gives its {listed(list(explanation.unexplained))}")
    strange = explanation.strange
    where = where_of(audit.callee.function, audit.callee.found.source.file, strange)
    if strange is not None and where is not None:
        due = due_in(audit.attempt.drawn.case.family)[role_of(strange.name) or ""]
        place = f"{strange.name} (line {where.line}: {where.code})"
        found.append(f"the first variable that matches no formula is {place}, and {due} is due")
    if any(one.judge.startswith("autograd") and not one.wrong for one in audit.opinions):
        words = "it computes another attention than scale * Q K^T, softmax, P V"
        found.append(f"its gradients are right for its own O: {words}")
    return tuple(found)
