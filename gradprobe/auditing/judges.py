"""Judges of a reference: autograd through a forward of its own, and finite differences of the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..model.intermediates import GRADIENT_OF, MATRIX_OF
from ..model.report import Opinion
from ..targets.find import FoundFunction, callables
from ..targets.naming import source_of
from .calling import CallConvention, Callee, is_near
from .watching import module_of

# Central differences in float64 err by step^2 of the third derivative and 1e-16 / step of the loss: by 1e-8 here.
_STEP, _NEAR, _NEAR_FLOAT32 = 1e-4, 1e-5, 2e-2
_DIRECTIONS = 3

OWN = "its own O"

Forward = Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class OwnForward:
    """A forward beside a reference, or the reference's own O."""

    name: str
    """`attention, line 12`, or "its own O"."""
    output: Forward


def own_forwards(callee: Callee, how: CallConvention, options: Mapping[str, Any]) -> Iterator[OwnForward]:
    """What computes O in the reference's file: itself where it returns O, then each function without dO."""

    def of(one: Callee, way: CallConvention) -> Forward:
        def output(values: Mapping[str, Tensor]) -> Tensor:
            return one.output(way, values, options)

        return output

    yield OwnForward(OWN, of(callee, how))
    module = module_of(callee.function)
    for name in callables(module) if module is not None and callee.is_backward else ():
        function = getattr(module, name)
        other = Callee(FoundFunction(name, function, source_of(function, module), callee.found.changes))
        try:
            if other.is_backward:
                continue
        except Exception:  # it takes no q, k and v
            continue
        yield OwnForward(f"{name}, line {other.found.source.line}", of(other, how))


def by_autograd(
    forwards: Iterator[OwnForward], values: Mapping[str, Tensor], results: Mapping[str, Tensor], due: Tensor
) -> tuple[Opinion | None, OwnForward | None]:
    """What float64 autograd through the first forward that can be differentiated says of the gradients; that forward.

    Another function of the file is a forward of this reference where its O is what is due, or all gradients are its.
    """
    for forward in forwards:
        try:
            leaves = {name: values[name].clone().requires_grad_() for name in ("q", "k", "v")}
            output = forward.output({**values, **leaves})
            if output.shape != values["do"].shape:
                continue
            if not output.requires_grad or _is_by_hand(output):
                if forward.name == OWN:
                    return None, forward
                continue
            made = torch.autograd.grad(output, list(leaves.values()), values["do"].to(output.dtype), allow_unused=True)
        except Exception:  # a stranger's function: whatever it raises, it is no forward of this call
            continue
        found = {name: one.double() for name, one in zip(MATRIX_OF, made, strict=True) if one is not None}
        judged = {name: is_near(results[name], found[name]) for name in found if name in results}
        if judged and (forward.name == OWN or is_near(output.detach(), due) or all(judged.values())):
            return opinion(f"autograd of {forward.name}", judged), forward
    return None, None


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


def by_differences(
    output: Forward, words: str, values: Mapping[str, Tensor], results: Mapping[str, Tensor], seed: int = 0
) -> Opinion | None:
    """What central differences of the loss sum(O * dO) say of each gradient, along a few drawn directions."""
    generator = torch.Generator().manual_seed(seed)
    judged = {}
    for name, of in ((GRADIENT_OF[of], of) for of in "qkv"):
        if name not in results or results[name].shape != values[of].shape:
            continue
        near = _NEAR if results[name].dtype == torch.float64 else _NEAR_FLOAT32
        agrees = True
        for _ in range(_DIRECTIONS):
            way = torch.randn(values[of].shape, generator=generator, dtype=torch.float64)
            try:
                ends = [output({**values, of: values[of] + side * way}) for side in (_STEP, -_STEP)]
            except Exception:
                return None
            losses = [float((end.detach().double() * values["do"]).sum()) for end in ends]
            slope, claimed = (losses[0] - losses[1]) / (2 * _STEP), float((results[name].double() * way).sum())
            size = float((results[name].double().abs() * way.abs()).sum()) or 1.0
            agrees &= abs(slope - claimed) <= near * max(size, abs(slope))
        judged[name] = agrees
    return opinion(f"finite differences of {words}", judged) if judged else None


def opinion(judge: str, judged: Mapping[str, bool]) -> Opinion:
    """What a judge says, from whether each result is right."""
    return Opinion(
        judge=judge,
        right=tuple(name for name, is_right in judged.items() if is_right),
        wrong=tuple(name for name, is_right in judged.items() if not is_right),
    )
