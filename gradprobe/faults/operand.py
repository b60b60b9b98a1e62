"""A: another operand in a product, or one that should have been transposed; H1: one gradient in another's place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from .hypothesis import Hypothesis, Seen, title
from .products import pe
from .variant import Hook, Scope, Variant

if TYPE_CHECKING:
    from torch import Tensor

_INPUTS = ("q", "k", "v", "do")


def hypotheses(seen: Seen) -> Iterator[Hypothesis]:
    """Every product with each other operand of the same shape; transposed matrices; gradients that changed places."""
    yield from _other_operands(seen)
    yield from _not_transposed(seen)
    yield from _exchanged(seen)


def _operand(scope: Scope, name: str) -> Tensor:
    if name in ("O", "P", "dP", "dS"):
        return scope.used[name]
    return pe(scope) if name == "PE" else scope.tensors[_INPUTS.index(name)]


def _other_operands(seen: Seen) -> Iterator[Hypothesis]:
    # (result, its formula, the operand meant, what may stand there)
    products: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
        ("dQ", "scale * dS K", "k", ("q", "v", "do")), ("dK", "scale * dS^T Q", "q", ("k", "do", "v", "O")),
        ("dV", "P^T dO", "do", ("O", "q", "v")), ("dQ", "scale * dS K", "dS", ("P", "dP")),
        ("dK", "scale * dS^T Q", "dS", ("P", "dP")), ("dV", "P^T dO", "PE", ("dS", "dP", "P")),
        ("dP", "dO V^T", "v", ("k",)), ("dP", "dO V^T", "do", ("O", "q")), ("O", "P V", "v", ("k",)),
    )  # fmt: skip
    for result, formula, meant, others in products:
        for other in others:
            if not _fits(seen, meant, other):
                continue
            if meant == "PE" and other == "P" and seen.x.family != "lazy" and seen.x.keep is None:
                continue
            words = f"{result} = {formula} is made with {title(other)} in place of {title(meant.replace('PE', 'P'))}"
            alter = partial(_with_operand, result, meant, other)
            yield Hypothesis(f"operand/{result}", "A", words, alter, frozenset({result}), fix=f"{result} = {formula}")


def _fits(seen: Seen, meant: str, other: str) -> bool:
    """Whether one operand has the shape of another, as a tile holds it; matrices all have one."""
    x = seen.x
    shapes = {name: tensor.shape[2:] for name, tensor in (("q", x.q), ("k", x.k), ("v", x.v), ("do", x.do))}
    shapes["O"] = shapes["do"]
    return shapes.get(meant) == shapes.get(other)


def _with_operand(result: str, meant: str, other: str, variant: Variant) -> Variant:
    def of(scope: Scope, name: str) -> Tensor:
        return _operand(scope, other if name == meant else name)

    made: Mapping[str, Hook] = {
        "dQ": lambda value, scope: scope.x.scale * of(scope, "dS") @ of(scope, "k"),
        "dK": lambda value, scope: scope.x.scale * of(scope, "dS").mT @ of(scope, "q"),
        "dV": lambda value, scope: of(scope, "PE").mT @ of(scope, "do"),
        "dP": lambda value, scope: (of(scope, "do") @ of(scope, "v").mT) * scope.x.valid(scope.tile),
        "O": lambda value, scope: of(scope, "PE") @ of(scope, "v"),
    }
    return variant.hooked((result, made[result]))


def _not_transposed(seen: Seen) -> Iterator[Hypothesis]:
    if seen.x.n_query != seen.x.n_key:
        return
    ways: tuple[tuple[str, str, Hook], ...] = (
        ("dV", "P dO, where P^T dO is meant", lambda value, scope: pe(scope) @ scope.tensors[3]),
        ("dK", "dS Q, where dS^T Q is meant",
         lambda value, scope: scope.x.scale * scope.used["dS"] @ scope.tensors[0]),
        ("dQ", "dS^T K, where dS K is meant",
         lambda value, scope: scope.x.scale * scope.used["dS"].mT @ scope.tensors[1]),
        ("dS", "P^T * (dP - delta)",
         lambda value, scope: scope.used["P"].mT * (scope.used["dP"] - scope.used["delta"][..., None])),
        ("dS", "P * (dP^T - delta)",
         lambda value, scope: scope.used["P"] * (scope.used["dP"].mT - scope.used["delta"][..., None])),
        ("dS", "P * (dP - delta) with delta along the keys",
         lambda value, scope: scope.used["P"] * (scope.used["dP"] - scope.used["delta"][..., None, :])),
        ("P", "exp(S - LSE) with LSE along the keys",
         lambda value, scope: value * (scope.used["LSE"][..., None] - scope.used["LSE"][..., None, :]).exp()),
    )  # fmt: skip
    for result, words, hook in ways:
        yield Hypothesis(
            f"transposed/{result}", "A", f"{result} is {words}", partial(_hooked, result, hook), frozenset({result})
        )


def _hooked(step: str, hook: Hook, variant: Variant) -> Variant:
    return variant.hooked((step, hook))


def _exchanged(seen: Seen) -> Iterator[Hypothesis]:
    for one, two in combinations(("dQ", "dK", "dV"), 2):
        if one in seen.actual and two in seen.actual and seen.actual[one].shape == seen.actual[two].shape:
            yield Hypothesis(
                f"swap/{one}-{two}", "H1", f"{one} and {two} have changed places",
                partial(_swapped, one, two), frozenset({one, two}), fix="return each gradient in its own place",
            )  # fmt: skip


def _swapped(one: str, two: str, variant: Variant) -> Variant:
    def finish(values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {one: values[two], two: values[one]} if {one, two} <= values.keys() else {}

    return variant.finishing(finish)
