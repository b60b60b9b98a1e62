"""Judges of a reference: the formulas, and autograd through a forward of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from ..frontends.python.watching import module_of
from ..model.failures import UsageFailure
from ..model.intermediates import MATRIX_OF
from ..model.report import Opinion
from ..targets.find import FoundFunction, callables
from ..targets.naming import source_of
from .attempts import Attempt
from .calling import Callee, Values, is_near

_OWN = "its own O"


def opinions_of(callee: Callee, attempt: Attempt) -> tuple[Opinion, ...]:
    """What each judge says of the results of one run."""
    of_formulas = {name: name not in attempt.wrong for name in attempt.called.results}
    judged = {"the built-in formulas, float64": of_formulas, **_by_autograd(callee, attempt)}
    opinions = []
    for judge, is_right in judged.items():
        right = tuple(name for name in is_right if is_right[name])
        opinions.append(Opinion(judge=judge, right=right, wrong=tuple(name for name in is_right if name not in right)))
    return tuple(one for one in opinions if one.right or one.wrong)


def _by_autograd(callee: Callee, attempt: Attempt) -> Mapping[str, Mapping[str, bool]]:
    """What float64 autograd through the first forward that can be differentiated says, by the name of the judge.

    Another function of the file is a forward of this reference where its O is what is due, or all gradients are its.
    """
    values, results = attempt.drawn.given, attempt.called.results
    for name, forward in _forwards(callee, attempt):
        try:
            leaves = {of: values[of].clone().requires_grad_() for of in ("q", "k", "v")}
            output = forward({**values, **leaves})
            if output.shape != values["do"].shape or not output.requires_grad or _is_by_hand(output):
                continue
            made = torch.autograd.grad(output, list(leaves.values()), values["do"].to(output.dtype), allow_unused=True)
        except Exception:  # a stranger's function: whatever it raises, it is no forward of this call
            continue
        found = {name: one.double() for name, one in zip(MATRIX_OF, made, strict=True) if one is not None}
        judged = {name: is_near(results[name], found[name]) for name in found if name in results}
        if judged and (name == _OWN or is_near(output.detach(), attempt.drawn.due["O"]) or all(judged.values())):
            return {f"autograd of {name}": judged}
    return {}


def _forwards(callee: Callee, attempt: Attempt) -> Iterator[tuple[str, Callable[[Values], Tensor]]]:
    """What computes O in the reference's file: itself where it returns O, then each function without dO."""
    options = {"causal": attempt.drawn.case.causal, "scale": attempt.drawn.case.scale}

    def output(of: Callee, values: Values) -> Tensor:
        return of.call(attempt.how, values, options, in_place=True).results["O"]

    yield _OWN, partial(output, callee)
    module = module_of(callee.function)
    for name in callables(module) if module is not None and callee.is_backward else ():
        function = getattr(module, name)
        try:
            other = Callee(FoundFunction(name, function, source_of(function, module), callee.found.changes))
        except UsageFailure:
            continue
        if not other.is_backward:
            yield f"{name}, line {other.found.source.line}", partial(output, other)


def _is_by_hand(output: Tensor) -> bool:
    """Whether a backward that somebody wrote takes part, which is no judge."""
    waiting, seen = [output.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if any(kind.__name__ == "BackwardCFunction" for kind in type(node).__mro__):
            return True
        seen.add(node)
        waiting += [one for one, _ in node.next_functions]
    return False
