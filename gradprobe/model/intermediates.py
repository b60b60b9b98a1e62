"""The one table of the formulas: intermediates, and subexpressions on the way, in dataflow order."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Step:
    axes: str
    """b batch, h head, g key/value head, m query row, n key, d head dim, e value head dim, w distance, 1 broadcast."""
    formula: str
    parents: tuple[str, ...]


@dataclass(frozen=True)
class Product:
    matrix: str
    other: str
    is_transposed: bool = False  # sums over rows
    is_scaled: bool = field(default=False, compare=False)

    @property
    def formula(self) -> str:
        return f"{self.matrix}{'^T' * self.is_transposed} {symbol(self.other)}"


@dataclass(frozen=True)
class Formula:
    name: str
    softmax: Step | None
    lazy: Step | None
    needs: str = ""  # the optional input that it needs
    gradient_of: str = ""
    like: str = ""  # the input whose dtype it must hold
    product: Product | None = None
    operands: tuple[str, ...] = ()
    constants: str = ""
    """"scores", "products" or "gradients", as `Roles` has them."""
    kernels: str = ""
    parameters: str = ""

    def step(self, family: str) -> Step | None:
        return self.lazy if family == "lazy" else self.softmax


@dataclass(frozen=True)
class Subexpression:
    name: str
    into: tuple[str, ...]
    parents: tuple[str, ...] = ()
    operands: tuple[tuple[str, ...], ...] = ()
    constants: str = ""
    stands_for: str = ""
    kernels: str = ""


_SCORED = ("q", "k", "bias", "alibi", "mask")
_LSE = Step("bhm", "log sum_j exp(S)", (*_SCORED, "sinks"))
_P = Step("bhmn", "exp(S - LSE)", (*_SCORED, "LSE"))
_DS = Step("bhmn", "P * (dP - delta)", ("P", "dP", "delta"))
_DQ, _DK = Step("bhmd", "scale * dS K", ("dS", "k")), Step("bgnd", "scale * dS^T Q", ("dS", "q"))
_ELASTIC = "relu(P + tau / (i + 1))"

TABLE = (
    Formula("LSE", _LSE, _LSE, like="q", constants="scores"),
    Formula("P", _P, _P, operands=("S - LSE",), kernels="pij"),
    Formula("O", Step("bhme", "P V", ("P", "v", "keep")), Step("bhme", f"{_ELASTIC} V", ("P", "v", "tau")),
            like="v", product=Product("P", "v"), kernels="acco"),
    Formula("dP", Step("bhmn", "dO V^T", ("do", "v", "mask", "keep")),
            Step("bhmn", "[Z > 0] * (dO V^T)", ("do", "v", "P", "tau")),
            operands=("do", "v"), constants="gradients", kernels="dpij"),
    Formula("delta", Step("bhm", "rowsum(dO * O)", ("do", "O")), Step("bhm", "rowsum(P * dP)", ("P", "dP")),
            operands=("do", "o"), constants="gradients", kernels="di deltai dsum dpsum"),
    Formula("dS", _DS, _DS, operands=("P", "dP - delta"), constants="products", kernels="dsij"),
    # Not d_q, nor d_k and d_v: of parameters those are the field's names of head dims.
    Formula("dQ", _DQ, _DQ, gradient_of="q", product=Product("dS", "k", is_scaled=True),
            kernels="dqacc accdq", parameters="dquery grad_q grad_query"),
    Formula("dK", _DK, _DK, gradient_of="k", product=Product("dS", "q", is_transposed=True, is_scaled=True),
            kernels="dkacc accdk", parameters="dkey grad_k grad_key"),
    Formula("dV", Step("bgne", "P^T dO", ("P", "do", "keep")), Step("bgne", f"{_ELASTIC}^T dO", ("P", "do", "tau")),
            gradient_of="v", product=Product("P", "do", is_transposed=True),
            kernels="dvacc accdv", parameters="dvalue grad_v grad_value"),
    Formula("dBias", Step("1hmn", "dT, summed over what bias is broadcast along", ("dS",)),
            Step("hw", "sum over i - j = w of dS", ("dS",)), "bias", "bias",
            parameters="d_bias grad_bias dattn_bias grad_attn_bias"),
    Formula("dSink", Step("h", "-sum exp(sink - LSE) * delta", ("LSE", "delta", "sinks")), None, "sinks",
            "sinks", parameters="dsinks d_sink d_sinks grad_sink grad_sinks"),
    # Not gradient_of="alibi": a forward takes its slopes for constants, and for slopes that require a gradient torch
    # would run another kernel. It is compared where a backward returns it.
    Formula("dAlibi", Step("h", "-sum of |diagonal - j| * dT", ("dS", "alibi")), None, "alibi", like="alibi",
            parameters="d_alibi grad_alibi dalibi_slopes grad_alibi_slopes"),
    Formula("dTau", None, Step("h", "sum of dP / (i + 1)", ("dP",)), "tau", "tau", parameters="d_tau grad_tau"),
)  # fmt: skip

_SCORES, _LARGEST = ("LSE", "P", "O"), ("LSE", "O")
SUBEXPRESSIONS = (
    Subexpression("Q K^T", _SCORES, operands=(("q", "k"),), constants="scores"),
    Subexpression("S", _SCORES, (), (("Q K^T",),), "scores", kernels="qk scores"),
    Subexpression("S - LSE", ("P",), ("LSE",), (("S", "LSE"), ("Q K^T", "LSE")), "scores"),
    Subexpression("maximum of S so far", _LARGEST, constants="scores", kernels="m mi"),
    Subexpression("maximum of Q K^T so far", _LARGEST, constants="scores"),
    Subexpression("sum of exp(S - maximum) so far", _LARGEST, kernels="l li"),
    Subexpression("P after dropout", ("O", "dV"), ("P",), stands_for="P"),
    Subexpression("P + tau / (i + 1)", ("O", "dP", "dV"), ("P",)),
    Subexpression(_ELASTIC, ("O", "dV"), ("P",), stands_for="P", kernels="pe pelastic"),
    Subexpression("dP / (i + 1)", ("dTau", "delta"), ("dP",)),
    Subexpression("sum of dP / (i + 1)", ("dTau", "delta"), ("dP",)),
    Subexpression("P * dP", ("delta", "dS"), ("P", "dP"), (("P", "dP"),)),
    Subexpression("dP - delta", ("dS",), ("dP", "delta"), (("dP", "delta"),), "gradients"),
    Subexpression("dT", ("dS", "dBias"), ("P", "dP", "delta"), constants="products"),
    Subexpression("sum of dS", ("dBias",), ("dS",)),
    Subexpression("dS K", ("dQ",), ("dS",), constants="products"),
    Subexpression("dS^T Q", ("dK",), ("dS",), constants="products"),
)

_BY_NAME = {row.name.lower(): row for row in TABLE}
_BY_NAME["out"] = _BY_NAME["o"]
GRADIENT_OF = {row.gradient_of: row.name for row in TABLE if row.gradient_of}
PRODUCTS = {row.name: row.product for row in TABLE if row.product is not None}
MATRICES = tuple(row.name for row in TABLE if row.softmax and row.softmax.axes == "bhmn")
OF_HEADS = tuple(
    row.name for row in TABLE for step in (row.softmax or row.lazy,) if step and step.axes == "h"
)
MATRIX_OF = {name: PRODUCTS[name].matrix for name in GRADIENT_OF.values() if name in PRODUCTS}
SUMMED_WITH = {PRODUCTS[gradient].other: gradient for gradient in MATRIX_OF}
"""By input: the gradient that sums its rows, times a matrix."""
_INTO = {row.name: row.into for row in SUBEXPRESSIONS}
_PARENTS = {row.name: row.parents for row in SUBEXPRESSIONS}
_MADE = {frozenset((made.matrix, made.other)): name for name, made in PRODUCTS.items()}
_MADE |= {frozenset(way): row.name for row in SUBEXPRESSIONS for way in row.operands}
_MADE |= {frozenset(row.operands): row.name for row in TABLE if row.operands}
_MADE |= {frozenset((name,)): name for name in MATRICES}
DERIVED = {name.lower(): name for name in ("O", "LSE", "delta")}
KINDS = {"b": "b", "h": "h", "g": "h", "m": "m", "n": "m", "d": "d", "e": "d", "w": "d"}
"""Which axes stand for one another."""

AXIS_WORDS = {
    "b": "batch", "h": "head", "g": "key head", "m": "row", "n": "key", "d": "dim", "e": "dim", "w": "distance",
}  # fmt: skip


def names() -> tuple[str, ...]:
    return tuple(row.name for row in TABLE)


def lookup(name: str) -> Formula | None:
    return _BY_NAME.get(name.lower())


def steps(family: str) -> Iterator[tuple[Formula, Step]]:
    for row in TABLE:
        step = row.step(family)
        if step is not None:
            yield row, step


def title(tensor: str) -> str:
    """As the field writes it: dO, LSE, q."""
    row = lookup(tensor)
    return row.name if row is not None else "dO" if tensor == "do" else tensor


def symbol(name: str) -> str:
    return {"q": "Q", "k": "K", "v": "V", "do": "dO"}.get(name, name)


def slots(axes: str) -> tuple[str, str, str, str]:
    whole = (axes if axes[0] in "b1" else "1" + axes).ljust(4, "1")
    batch, head, row, col = ("" if letter == "1" else letter for letter in whole)
    return batch, head, row, col


def reached(names: Collection[str], family: str) -> list[str]:
    """With all that they enter, in dataflow order."""
    found = dict.fromkeys(names)
    for row, step in steps(family):
        if found.keys() & {*step.parents}:
            found[row.name] = None
    return [*found]


def entered_by(form: str) -> tuple[str, ...]:
    return _INTO.get(form, (form,) if lookup(form) is not None else ())


def parents_of(form: str, family: str) -> tuple[str, ...]:
    row = lookup(form)
    step = row.step(family) if row is not None else None
    at_once = filter(lookup, step.parents) if step is not None else ()
    return _PARENTS.get(form, tuple(at_once))


def in_place_of(matrix: str) -> tuple[str, ...]:
    """What products take for it: with dropout or tau in it too."""
    return (matrix, *(row.name for row in SUBEXPRESSIONS if row.stands_for == matrix))


def unscaled(name: str) -> str:
    """Before its scale: dS K of dQ, dV of itself."""
    return PRODUCTS[name].formula if PRODUCTS[name].is_scaled else name


def made_of(operands: Collection[str]) -> str:
    """By one operation, rounded or scaled or not."""
    return _MADE.get(frozenset(operands), "")


def in_kernels(*rows: str) -> dict[str, str]:
    found = dict[str, str]()
    for row in (*TABLE, *SUBEXPRESSIONS):
        if row.name in rows:
            found |= dict.fromkeys((row.name.lower(), *row.kernels.split()), row.name)
    return found


def plain(name: str) -> str:
    return name.lower().replace("_", "")


_LONG = sorted((name.lower() for name in names() if len(name) > 1), key=len, reverse=True)
_GRADIENTS = "|".join(_LONG)


def is_named_after(kernel: str, intermediate: str) -> bool:
    """Whether a word of a kernel's name is made up of gradients, this among them: `lazy_dkdv_kernel`."""
    words = re.split(r"[^a-z]+", kernel.lower())
    of_gradients = [word for word in words if re.fullmatch(f"(?:{_GRADIENTS})+", word)]
    return any(intermediate.lower() in re.findall(_GRADIENTS, word) for word in of_gradients)
