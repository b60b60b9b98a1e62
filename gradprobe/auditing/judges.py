"""Judges of a reference: autograd through a forward of its own, and finite differences of the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from ..model.failures import UsageFailure
from ..model.intermediates import GRADIENT_OF, MATRIX_OF
from ..model.report import Opinion
from ..targets.find import FoundFunction, callables
from ..targets.naming import source_of
from .attempts import Attempt, Drawn, due_of
from .calling import Callee, Values, is_near
from .watching import module_of

# Central differences in float64 err by step^2 of the third derivative and 1e-16 / step of the loss: by 1e-8 here.
_STEP, _NEAR, _NEAR_FLOAT32 = 1e-4, 1e-5, 2e-2
_DIRECTIONS = 3

_OWN = "its own O"
_Forward = Callable[[Values], Tensor]


def opinions_of(callee: Callee, attempt: Attempt) -> tuple[Opinion, ...]:
    """What each judge says of the results of one run."""
    drawn, results = attempt.drawn, attempt.called.results
    of_formulas = _opinion("the built-in formulas, float64", {name: name not in attempt.wrong for name in results})
    of_autograd, own = _of_autograd(callee, attempt)
    built_in = lambda values: due_of(drawn.case, {name: values[name] for name in drawn.values})["O"]  # noqa: E731
    of_built_in = _of_differences("the built-in O", built_in, drawn, results)
    of_own = None if own is None else _of_differences(_OWN, own, drawn, results)
    return tuple(one for one in (of_formulas, of_autograd, of_built_in, of_own) if one is not None)


def _of_autograd(callee: Callee, attempt: Attempt) -> tuple[Opinion | None, _Forward | None]:
    """What float64 autograd through the first forward that can be differentiated says; its own O where that cannot.

    Another function of the file is a forward of this reference where its O is what is due, or all gradients are its.
    """
    values, results = attempt.drawn.given, attempt.called.results
    for name, forward in _forwards(callee, attempt):
        try:
            leaves = {of: values[of].clone().requires_grad_() for of in ("q", "k", "v")}
            output = forward({**values, **leaves})
            if output.shape != values["do"].shape:
                continue
            if not output.requires_grad or _is_by_hand(output):
                if name == _OWN:
                    return None, forward
                continue
            made = torch.autograd.grad(output, list(leaves.values()), values["do"].to(output.dtype), allow_unused=True)
        except Exception:  # a stranger's function: whatever it raises, it is no forward of this call
            continue
        found = {name: one.double() for name, one in zip(MATRIX_OF, made, strict=True) if one is not None}
        judged = {name: is_near(results[name], found[name]) for name in found if name in results}
        if judged and (name == _OWN or is_near(output.detach(), attempt.drawn.due["O"]) or all(judged.values())):
            return _opinion(f"autograd of {name}", judged), None
    return None, None


def _forwards(callee: Callee, attempt: Attempt) -> Iterator[tuple[str, _Forward]]:
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


def _of_differences(words: str, output: _Forward, drawn: Drawn, results: Values) -> Opinion | None:
    """What central differences of the loss sum(O * dO) say of each gradient, along a few drawn directions."""
    generator, values = torch.Generator().manual_seed(0), drawn.given
    judged = {}
    for of in "qkv":
        name = GRADIENT_OF[of]
        if name not in results or results[name].shape != values[of].shape:
            continue
        near = _NEAR if results[name].dtype == torch.float64 else _NEAR_FLOAT32
        judged[name] = True
        for _ in range(_DIRECTIONS):
            way = torch.randn(values[of].shape, generator=generator, dtype=torch.float64)
            try:
                ends = [output({**values, of: values[of] + side * way}) for side in (_STEP, -_STEP)]
            except Exception:
                return None
            losses = [float((end.detach().double() * values["do"]).sum()) for end in ends]
            slope, claimed = (losses[0] - losses[1]) / (2 * _STEP), float((results[name].double() * way).sum())
            size = float((results[name].double().abs() * way.abs()).sum()) or 1.0
            judged[name] &= abs(slope - claimed) <= near * max(size, abs(slope))
    return _opinion(f"finite differences of {words}", judged) if judged else None


def _opinion(judge: str, judged: Mapping[str, bool]) -> Opinion:
    """What a judge says, from whether each result is right."""
    right = tuple(name for name, is_right in judged.items() if is_right)
    return Opinion(judge=judge, right=right, wrong=tuple(name for name in judged if name not in right))
