"""What one-hot problems say of a black box: how wrong each result is there, and what its errors look like."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..model.case import Case
from ..model.intermediates import MATRIX_OF
from ..model.number import in_words, spans
from ..reference import Attention, evaluate
from ..runtime.run import Trace
from .budget import RECOVERABLE, quotient_error, slope_of
from .compare import Comparison, allowed_on, tiles_of
from .evidence import MeasuredRun
from .finding import Finding
from .one_hot import ZERO_KEYS, RecoveredValues, shown_together

RIGHT, COARSE, WRONG = range(3)
"""Within the contract's budget; within that of the coarser arithmetic that such a kernel may have; beyond."""
Measure = Callable[..., MeasuredRun]
"""Compares a trace with the reference: given the values that it came of, the trace, how its intermediates were
recovered, and by `coarse` whether to judge by the arithmetic that is coarser than the contract."""
ZERO = ", 0 throughout"
"""What is said of a dS of which nothing came."""
# What an explanation may leave of a squared error.
_UNEXPLAINED = 0.01
# P that is no rounding error of 0.
_SEEN = 1e-3
# How far one factor may be from a row of P, of its largest: five roundings of bfloat16. It chooses words, no verdict.
_ALIKE = 0.02
# Sets of axes whose strides kernels are known to mix up: one, those of a program's offset, or all.
_AXES = ("b", "h", "m", "d", "bh", "bhm", "md", "bhmd")
# What one reading may leave of a gradient, as a share of its squares: a 16-bit rounding leaves 2^-16 at most.
_ROUNDED = 2.0**-10


@dataclass(frozen=True)
class ResultEvidence:
    """What one exported result says of one intermediate: dV of P, dQ of dS, dK of dS, and each of itself.

    Its sums have one term where the ordinary ones have many: a coarser arithmetic than the contract's shows whole here,
    and averages out there. So what the ordinary run has right is wrong here beyond that arithmetic alone. And where the
    ordinary run has it more wrong than this, this does not reach what is wrong there.
    """

    name: str
    through: str
    grade: int
    beside: int
    """The grade of the exported result in the ordinary run."""
    whole: int
    """The grade of the exported result here, its other elements included."""
    ratio: float
    """The worst error as a multiple of what the contract allows."""

    @property
    def is_shown(self) -> bool:
        """Whether it is of an intermediate that a gradient shows, not of the result itself."""
        return self.name != self.through

    @property
    def is_wrong(self) -> bool:
        return self.grade == WRONG or self.grade == self.beside == COARSE

    @property
    def is_coarse(self) -> bool:
        """Whether it is held to the coarser arithmetic, and keeps it."""
        return self.grade == COARSE and not self.is_wrong

    @property
    def is_reached(self) -> bool:
        """Whether what is wrong in the ordinary run shows here too."""
        return self.beside <= self.whole

    @property
    def note(self) -> str:
        """The disagreement of one that is coarse, in words."""
        seen = f", seen through {self.through}," if self.is_shown else " of them"
        return (
            f"in one-hot problems {self.name}{seen} errs by {self.ratio:.3g}x what is allowed, and with the case's own "
            f"values {self.through} is right: rather a coarser arithmetic than a wrong kernel"
        )


class Scales:
    """What weighs the results of one-hot problems against those of the ordinary run."""

    def __init__(self, measure: Measure, own: MeasuredRun, values: Mapping[str, Tensor]) -> None:
        self._measure, self._own, self._values = measure, own, values
        self._beside: dict[str, int] = {}

    def all(self, recovered: RecoveredValues, measured: MeasuredRun) -> list[ResultEvidence]:
        """What every exported result says; `measured` is the recovered trace, compared."""
        findings, values = measured.comparison.findings, recovered.trace.values
        exported = [
            self._evidence(recovered, name, name, values[name], findings[name])
            for name in findings
            if not recovered.is_read(name)
        ]
        return exported + self.shown(recovered, exported, findings)

    def shown(
        self,
        recovered: RecoveredValues,
        before: list[ResultEvidence],
        known: Mapping[str, Finding] = {},
    ) -> list[ResultEvidence]:
        """What each gradient shows of its intermediate.

        Args:
            before: what is known of how wrong the gradients are.
            known: the findings of what was recovered, where that was compared.
        """
        whole, found = {one.through: one.whole for one in before}, []
        for through, value in recovered.by.items():
            evidence = self.of(recovered, through, value, known)
            found.append(replace(evidence, whole=max(evidence.grade, whole.get(through, RIGHT))))
        return found

    def of(
        self,
        recovered: RecoveredValues,
        through: str,
        value: Tensor,
        known: Mapping[str, Finding] = {},
    ) -> ResultEvidence:
        """What a gradient shows of its intermediate, by the value that it shows."""
        name = MATRIX_OF[through]
        is_own = recovered.is_read(name) and value is recovered.trace.values.get(name)
        if not (is_own and name in known):
            known = self._alone(recovered, name, value).findings
        return self._evidence(recovered, name, through, value, known[name])

    def _evidence(
        self,
        recovered: RecoveredValues,
        name: str,
        through: str,
        value: Tensor,
        finding: Finding,
    ) -> ResultEvidence:
        grade = RIGHT
        if finding.mismatched:
            grade = COARSE if self._alone(recovered, name, value, coarse=True).matches else WRONG
        beside = self._beside_of(through)
        return ResultEvidence(name, through, grade, beside, grade, finding.max_ratio)

    def _beside_of(self, name: str) -> int:
        """The grade of a result of the ordinary run."""
        if name not in self._beside:
            self._beside[name], finding = RIGHT, self._own.comparison.findings.get(name)
            if finding is not None and finding.mismatched:
                came = _only(name, self._own.trace.values[name])
                alone = self._measure(self._values, came, coarse=True)
                self._beside[name] = COARSE if alone.comparison.matches else WRONG
        return self._beside[name]

    def _alone(
        self, recovered: RecoveredValues, name: str, value: Tensor, *, coarse: bool = False
    ) -> Comparison:
        # What a gradient shows was read, even where the target exposes it besides.
        is_read = value is not recovered.trace.values.get(name) or recovered.is_read(name)
        recovery = replace(recovered.recovery, names=frozenset(RECOVERABLE if is_read else ()))
        alone = self._measure(recovered.values, _only(name, value), recovery, coarse=coarse)
        return alone.comparison


def _only(name: str, value: Tensor) -> Trace:
    return Trace({name: value}, {name: "exported"})


def factor_in_words(recovered: RecoveredValues, name: str, tensor: Tensor) -> str:
    """By which one factor P or dS is wrong, in words; "" where no single factor explains it."""
    own = product = squares = of_dt = 0.0
    for _, at, values in recovered.tiles():
        actual, expected = tensor[at].double(), values[name]
        before = values["P"] * (values["dP"] - values["delta"][..., None])
        own += float((actual**2).sum())
        product += float((actual * expected).sum())
        squares += float((expected**2).sum())
        of_dt += float(((actual - before) ** 2).sum())
    if not 0.0 < own < float("inf"):
        return ZERO if own == 0.0 else ""
    factor = product / squares if squares else 0.0
    # Of an error that one factor makes, only rounding is left once it is taken out.
    most = _UNEXPLAINED * (own - 2 * product + squares)
    if own - factor * product <= most:
        return f" by the factor {factor:.4g} throughout"
    is_dt = name == "dS" and recovered.x.softcap is not None and of_dt <= most
    return ", as without the softcap's derivative" if is_dt else ""


def are_one_fault(recovered: RecoveredValues) -> bool:
    """Whether the dS that dQ shows is wrong in the same way as the dS that dK shows.

    Compared are elements that one probe shows in both: between probes a misread value may differ.
    """
    together = shown_together(recovered.case, recovered.plan).to(recovered.x.q.device)
    apart = errors = 0.0
    for tile, at, expected in recovered.tiles():
        both = together[tile.heads, tile.rows]
        of_dq, of_dk = (recovered.by[name][at].double() * both for name in ("dQ", "dK"))
        ds = expected["dS"] * both
        apart += float(((of_dq - of_dk) ** 2).nan_to_num(0.0).sum())
        errors += float(((of_dq - ds) ** 2 + (of_dk - ds) ** 2).nan_to_num(0.0).sum())
    return apart <= _UNEXPLAINED * errors


def is_one_delta_a_row(measured: MeasuredRun, recovered: RecoveredValues) -> bool:
    """Whether all keys without a value show the same delta for each row."""
    x, values, precision = recovered.x, recovered.trace.values, measured.comparison.precision
    for tile, at, expected in recovered.tiles():
        rows = allowed_on(x, tile, expected, precision, recovered.recovery).rows
        slope, seen = slope_of(x, tile), (expected["P"] > rows["P"])[..., ::ZERO_KEYS]
        quotients = values["dS"][at].double() / (values["P"][at].double() * slope)
        g = quotients[..., ::ZERO_KEYS].masked_fill(~seen, 0.0)
        allowed = quotient_error(expected, rows, slope)[..., ::ZERO_KEYS].masked_fill(~seen, 0.0)
        # Errors were bounded for the delta expected; they grow with the one that came.
        growth = 1 + g.abs().amax(-1, keepdim=True) / expected["delta"].abs()[..., None]
        apart = (g + values["delta"][at].double()[..., None]).abs()
        if bool((seen & (apart > 2 * growth * allowed)).any()):
            return False
    return True


def shape_of_p(recovered: RecoveredValues, p: Tensor, *, may_read_lse: bool) -> list[str]:
    """What the errors of a wrong P look like; of LSE only where the target may read one."""
    return _of_entries(recovered, p) or _of_factors(recovered, p, may_read_lse=may_read_lse)


def _of_entries(recovered: RecoveredValues, p: Tensor) -> list[str]:
    """Entries that are 0 or that are not, where the others are what they should be but for a factor of their row."""
    leaked = hidden = 0
    alike, scattered = True, False
    lost, heads = set[int](), set[int]()
    for tile, at, values in recovered.tiles():
        actual, expected = p[at].double(), values["P"]
        valid = values["valid"].expand_as(actual)
        gone = (actual == 0).all(-1) & (expected > _SEEN).any(-1)
        lost |= {tile.rows.start + row for row in gone.any(0).nonzero().flatten().tolist()}
        heads |= {tile.heads.start + head for head in gone.any(1).nonzero().flatten().tolist()}
        leaked += int((~valid & (actual != 0)).sum())
        missing = valid & (actual == 0) & (expected > _SEEN)
        hidden += int(missing.sum())
        scattered |= bool((missing & ~gone[..., None]).any())
        seen, due = actual * valid, expected * (actual != 0)
        factor = (seen * due).sum(-1, keepdim=True) / (due * due).sum(-1, keepdim=True).clamp(
            min=1e-300
        )
        off = (seen - factor * due).abs()
        alike &= bool((off <= _ALIKE * factor * due.amax(-1, keepdim=True)).all())
    if alike and (leaked or scattered):
        counts = [f"{leaked:,} entries are seen that are masked"] if leaked else []
        counts += [f"{hidden:,} entries are masked that are seen"] if hidden else []
        return [f"the backward has another mask: {' and '.join(counts)}"]
    if lost and not (leaked or scattered):
        rows, of_heads = in_words(spans(sorted(lost)), 6), in_words(spans(sorted(heads)), 6)
        return [f"whole rows of P are 0 (rows {rows}, heads {of_heads}): they never reach dV"]
    return []


def _of_factors(recovered: RecoveredValues, p: Tensor, *, may_read_lse: bool) -> list[str]:
    """One factor for each row, or for each key, by least squares."""
    # Sums of the squares of what came, of that times what is expected, and of the squares of this.
    rows, keys = (recovered.x.q.new_zeros(3, *p.shape[:2], p.shape[axis]) for axis in (2, 3))
    for tile, at, values in recovered.tiles():
        actual, expected = p[at].double(), values["P"]
        for sums, part in enumerate((actual**2, actual * expected, expected**2)):
            rows[sums][at] = part.sum(-1)
            keys[sums, tile.batch, tile.heads] += part.sum(-2)
    error = float((rows[0] - 2 * rows[1] + rows[2]).sum())
    if _explain(rows, error):
        factors = (rows[1] / rows[2])[rows[2] > 0]
        low, high = float(factors.min()), float(factors.max())
        of_lse = (
            ", as if the backward read an LSE that is not that row's" if may_read_lse else ""
        )
        return [f"P is off by one factor a row, {low:.4g} to {high:.4g}{of_lse}"]
    if _explain(keys, error):
        most = 100 * float(((keys[1] / keys[2])[keys[2] > 0] - 1).abs().max())
        return [f"P is off by {most:.2g} % from key to key: each key has one factor in all rows"]
    return []


def _explain(sums: Tensor, error: float) -> bool:
    """Whether factors leave next to nothing of a squared error, so that they differ from 1 by more than the rest."""
    squares, products, expected = sums
    rest = squares - products**2 / expected.clamp(min=1e-300)
    return float(rest.sum()) <= _UNEXPLAINED * error


def reread_do(case: Case, x: Attention, dv: Tensor, tensors: Mapping[str, Tensor]) -> str | None:
    """How dO is misread, "with q's head stride", where that explains the dV that came; None where nothing does.

    Args:
        tensors: the inputs as they lay in memory, guard bands around them.
    """
    readings = dict(_by_strides(tensors)) | dict(_of_other_heads(case, x.do))
    predicted = {reading: dv.double() * 0 for reading in readings}
    for tile in tiles_of(case, x):
        pe, kv_heads = evaluate(x, tile)["PE"], x.kv_heads(tile)
        for reading, do in readings.items():
            share = pe.mT @ do[tile.batch, tile.heads, tile.rows].double()
            predicted[reading][tile.batch].index_add_(0, kv_heads, share)
    for reading, expected in predicted.items():
        error = ((dv.double() - expected) ** 2).sum() / (expected**2).sum().clamp(min=1e-300)
        if bool(error <= _ROUNDED):
            return reading
    return None


def _by_strides(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Every other reading of dO by another tensor's strides, each once."""
    own, named = tensors["do"], {"b": "batch", "h": "head", "m": "row", "d": "dim"}
    tried, elements = {own.stride()}, own.untyped_storage().nbytes() // own.element_size()
    for name, other in tensors.items():
        if name == "do" or other.dim() != 4 or not other.is_floating_point():
            continue
        for axes in _AXES:
            pairs = zip("bhmd", own.stride(), other.stride(), strict=True)
            strides = tuple(theirs if axis in axes else mine for axis, mine, theirs in pairs)
            steps = ((n - 1) * stride for n, stride in zip(own.shape, strides, strict=True))
            if strides in tried or own.storage_offset() + sum(steps) >= elements:
                continue
            tried.add(strides)
            words = "every" if len(axes) == 4 else " and ".join(named[axis] for axis in axes)
            yield f"with {name}'s {words} stride", own.as_strided(own.shape, strides)


def _of_other_heads(case: Case, do: Tensor) -> Iterator[tuple[str, Tensor]]:
    """dO of the head or batch that a wrong index leads to."""
    heads, kv_heads = torch.arange(case.heads, device=do.device), case.kv_heads
    if case.heads > 1:
        yield "of head 0 in every head", do[:, heads * 0]
    if 1 < kv_heads < case.heads:
        group = case.heads // kv_heads
        yield "of head h // group, its key head's number", do[:, heads // group]
        yield "of head h % kv_heads", do[:, heads % kv_heads]
    if case.batch > 1:
        yield "of batch 0 in every batch", do[:1].expand_as(do)
