"""What an audit says: its mistakes as diagnoses with lines, and the names that say one thing and hold another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..model.intermediates import PRODUCTS, symbol
from ..model.number import listed
from ..model.report import Diagnosis, NameMismatch, Where
from ..source.expressions import Expression
from ..targets.naming import plain_function
from .audit import Audit
from .explain import AT_USE, Holding, Located
from .forms import Mistake, due_in
from .names import line_of_role, return_line, role_of
from .watching import Value

_CLASS = "reference"
_MOST_HELD = 6
_INPUTS = ("q", "k", "v", "do")


def diagnoses_of(audit: Audit) -> tuple[Diagnosis, ...]:
    """What is wrong with a reference, in the order of the formulas; empty where nothing is, or nothing is known."""
    explanation = audit.explanation
    if explanation is None:
        return ()
    if explanation.swapped is not None:
        return (_of_swap(audit, explanation.swapped),)
    groups: dict[tuple[str, str], list[Located]] = {}
    for one in explanation.located:
        # The same mistake in two formulas is told once, with both lines.
        words = (
            one.mistake.came.replace(one.mistake.of, "{}") if one.mistake.of in ("dQ", "dK", "dV") else one.mistake.came
        )
        groups.setdefault((one.mistake.key, words), []).append(one)
    return tuple(
        _diagnosis(audit, words, group, also=number > 0) for number, ((_, words), group) in enumerate(groups.items())
    )


def _diagnosis(audit: Audit, words: str, group: list[Located], *, also: bool) -> Diagnosis:
    first, own = group[0], [one.mistake.of for one in group]
    results = list(dict.fromkeys(name for one in group for name in one.results))
    fix = first.mistake.fix.replace(first.mistake.of, listed(own)) if len(own) > 1 else first.mistake.fix
    masked = (
        next((one for one in audit.explanation.holdings if one.words == "S, masked"), None)
        if audit.explanation
        else None
    )
    if first.mistake.key == "mask/left-out" and masked is not None:
        fix = f"make it of {masked.name}, which is masked in line {masked.line}"
    is_loss = first.mistake.key == "do/other"  # which no value shows, but the call of autograd
    places = [None if is_loss or _is_inherited(one) and _elsewhere(audit, one.mistake) else one.at for one in group]
    rebound = None if also else _rebound(audit, places[0])
    places = [rebound.at, *places] if rebound is not None else places
    wheres = [where for at in places if (where := where_of(audit, at)) is not None]
    formulas = due_in(audit.attempt.drawn.case.family)
    due = [formulas[name] for name in own if name in formulas]
    return Diagnosis(
        fault=f"reference/{first.mistake.key}",
        fault_class=_CLASS,
        summary=words.replace("{}", listed(own)),
        explained=1.0,
        evidence=(
            f"due: {'; '.join(due) or 'float32 or wider'}",
            *_rebinding(audit, rebound),
            *_seen_of(audit, first),
            f"with it every element of {listed(results)} is what came",
        ),
        where=tuple(wheres) or _elsewhere(audit, first.mistake),
        fix=fix,
        also=also,
    )


def _seen_of(audit: Audit, located: Located) -> Iterator[str]:
    """What of P is wrong, in numbers."""
    if located.form is None or located.form.kind != "P":
        return
    p, x = located.form.values, audit.attempt.drawn.x
    hidden = np.broadcast_to(~np.tril(np.ones(p.shape[-2:], bool)), p.shape) if x.causal else np.zeros(p.shape, bool)
    if hidden.any() and np.abs(p[hidden]).max() > 0:
        yield f"its entries above the diagonal are up to {np.abs(p[hidden]).max():.2g}, where 0 is due"
    sums = np.nan_to_num(p.sum(-1))
    if np.abs(sums - 1).max() > 1e-6:
        yield f"its rows sum to {sums.min():.3g} to {sums.max():.3g}, where 1 is due"


def _rebound(audit: Audit, before: Expression | None) -> Holding | None:
    """A parameter that was made another input before a mistake: what its name says is not what it holds."""
    explanation, takes = audit.explanation, {own: name for name, own in audit.callee.takes.items()}
    if explanation is None or before is None:
        return None
    for one in explanation.holdings:
        says = "O" if takes.get(one.name) == "o" else takes.get(one.name)
        is_other = one.kind in (*_INPUTS, *PRODUCTS) and one.kind != says
        if says in (*_INPUTS, "O") and is_other and one.line <= before.line:
            return one
    return None


def _rebinding(audit: Audit, one: Holding | None) -> Iterator[str]:
    if one is not None:
        yield f"the parameter {one.name} holds {one.words} from line {one.line} on"


def where_of(audit: Audit, at: Expression | None) -> Where | None:
    """The line of an expression, with what it is underlined."""
    source = audit.callee.source
    if source is None or at is None:
        return None
    return where_in(source.file, source.text.splitlines(), at)


def where_in(file: str, lines: list[str], at: Expression) -> Where:
    """The line of an expression in a file of these lines, with what it is underlined."""
    line = lines[at.line - 1]
    start = len(line.encode()[: at.column].decode(errors="ignore"))
    ends = at.end_column if at.end_line == at.line else len(line.encode())
    end = len(line.encode()[:ends].decode(errors="ignore"))
    code, before = line.strip(), len(line) - len(line.lstrip())
    return Where(file, at.line, code, max(start - before, 0), end - start, at.function)


def _is_inherited(one: Located) -> bool:
    """Whether it shows in results alone, and not where it is made."""
    is_made = one.mistake.of in ("P", "dP", "delta", "dS") and one.mistake.key not in AT_USE
    return is_made and one.form is not None and one.form.kind in PRODUCTS


def _elsewhere(audit: Audit, mistake: Mistake) -> tuple[Where, ...]:
    """Where a mistake is made that no value shows: the return, the call of autograd, or a variable by its name."""
    source, function = audit.callee.source, plain_function(audit.callee.function)
    if mistake.key in ("order", "do/other"):
        line, note = return_line(function, source, backward=mistake.key == "do/other"), ""
    else:
        roles = (mistake.of, "dS") if mistake.of == "delta" else (mistake.of,)
        lines = (line_of_role(function, source, role) for role in roles)
        line, note = next((line for line in lines if line is not None), None), "by its name"
    if source is None or line is None:
        return ()
    code = source.text.splitlines()[line - 1].strip()
    return (Where(source.file, line, code, kernel=audit.callee.found.source.name, note=note),)


def _of_swap(audit: Audit, pair: tuple[str, str]) -> Diagnosis:
    source = audit.callee.found.source
    code = audit.callee.source.text.splitlines()[source.line - 1].strip() if audit.callee.source else ""
    return Diagnosis(
        fault="reference/swapped",
        fault_class=_CLASS,
        summary=f"the parameter {pair[0]} is used as {pair[1]}, and {pair[1]} as {pair[0]}",
        explained=1.0,
        evidence=("with the two exchanged every result is right",),
        where=(Where(source.file, source.line, code, kernel=source.name),) if code else (),
        fix=f"exchange {pair[0]} and {pair[1]} in its signature, or where they are used",
    )


def known_of(audit: Audit) -> tuple[str, ...]:
    """What is known of results that no mistake explains."""
    explanation = audit.explanation
    found = [f"what it returns as {name} has the shape {list(shape)}" for name, shape in audit.misshapen.items()]
    if explanation is not None and (names := audit.attempt.called.overwritten):
        found.append(f"it overwrites its input {listed(list(names))}")
    if explanation is not None and explanation.varies:
        found.append("its results differ from call to call: it reads uninitialized memory, or draws random numbers")
    if explanation is None or explanation.swapped is not None or not explanation.unexplained:
        return tuple(found)
    if explanation.strange is not None:
        found += _rebinding(audit, _rebound(audit, explanation.strange.at))
    found.append(f"no known formula gives its {listed(list(explanation.unexplained))}")
    if (strange := explanation.strange) is not None:
        found.append(_strange_words(audit, strange))
    if any(
        value.wrong == ()
        for value in audit.opinions
        if value.judge.startswith(("autograd", "finite differences of its"))
    ):
        found.append(
            "its gradients are right for its own O: it computes another attention than scale * Q K^T, softmax, P V"
        )
    return tuple(found)


def _strange_words(audit: Audit, value: Value) -> str:
    where, role = where_of(audit, value.at), role_of(value.at.name)
    formulas = due_in(audit.attempt.drawn.case.family)
    due = f", and {formulas[role]} is due" if role is not None and role in formulas else ""
    place = f" (line {where.line}: {where.code})" if where else ""
    return f"the first variable that matches no formula is {value.at.name}{place}{due}"


def held_of(audit: Audit) -> tuple[NameMismatch, ...]:
    """Parameters and variables whose names say one thing, and hold another."""
    explanation = audit.explanation
    if explanation is None:
        return ()
    if explanation.swapped is not None:
        takes = {own: name for name, own in audit.callee.takes.items()}
        pair = explanation.swapped
        return tuple(
            NameMismatch(name=one, says=symbol(takes[one]), holds=f"used as {symbol(takes[other])}")
            for one, other in (pair, pair[::-1])
        )
    return tuple(_conflicts(audit, explanation.holdings))[:_MOST_HELD]


def _conflicts(audit: Audit, holdings: tuple[Holding, ...]) -> Iterator[NameMismatch]:
    parameters = {
        own: "O" if name == "o" else name.upper() if name == "lse" else name for name, own in audit.callee.takes.items()
    }
    by_name: dict[str, list[Holding]] = {}
    for one in holdings:
        by_name.setdefault(one.name, []).append(one)
    for name, those in by_name.items():
        says = parameters.get(name) or role_of(name)
        wrong = [one for one in those if _is_own(one) or (says and one.kind and not _agree(says, one.kind))]
        if wrong and says:
            rows = those if len(those) > 1 else wrong
            for one in {(one.line, one.words): one for one in rows}.values():
                yield NameMismatch(name=name, says=symbol(says), holds=_holds(one), line=one.line)


def _is_own(one: Holding) -> bool:
    """Whether the mistake is in the formula of what it holds, and not only inherited."""
    return any(mistake.of == one.kind for mistake in one.mistakes)


def _holds(one: Holding) -> str:
    own = next((mistake.came for mistake in one.mistakes if mistake.of == one.kind), "")
    return own or (f"{one.words}, made of what is wrong" if one.mistakes else one.words)


def _agree(says: str, kind: str) -> bool:
    """Whether a name fits: scores, probabilities and their steps go by one name in much code."""
    alike = ({"S", "P", "LSE"}, {"dP", "dS"})
    return says == kind or any({says, kind} <= group for group in alike)
