"""A target on values that tell its arithmetic -> Contract: what it rounds, and in what it adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ..model.case import Case
from ..model.failures import TargetFailure
from ..model.intermediates import PRODUCTS
from ..model.kernel_contract import Contract, Reading
from ..numerics.coarser import Model
from ..numerics.compare import attention_of
from ..numerics.readings import Draws, read, read_sums
from ..numerics.ways import AGAIN, GroupedProblem
from ..runtime.run import run_target
from ..targets.find import Target
from .experiment import experiment_of, inputs_of

# Rows and keys beyond which what is rounded before a product shows no better.
_MOST = 128
# At most, while several ways fit.
_DRAWS = 8


def contract_of(target: Target, case: Case) -> Contract:
    """What a target rounds before its products, and in what it adds up dQ, dK and dV.

    It is run on dyadic values, of which nothing but sums is rounded, and on standard normal ones, with the case's seed
    and those that follow. What fits on all of them is its contract.

    Args:
        case: its pattern does not count; with a scale for which dyadic values exist.

    Raises:
        UsageFailure: there are no dyadic values for the case, or it uses what the target does not take.
        TargetFailure: the target could not be run, or gives no gradient and no O.
    """
    even = _draws(target, replace(case, pattern="dyadic"))
    given = [name for name in PRODUCTS if name in even.at(0).trace.values]
    if not given:
        raise TargetFailure(f"target {target.name!r} gives no O, dQ, dK or dV to read its arithmetic off")
    sums = {name: read_sums(even, name) for name in given if name != "O"}
    short = case
    if case.cu_seqlens_q is None and case.seqlen_q == case.seqlen_k:
        length = min(case.seqlen_q, _MOST)
        short = case.with_lengths(length, length)
    # How sums are kept that are not in float32: in a shorter case it may be in other tiles.
    dyadic, coarse = _draws(target, replace(short, pattern="dyadic")), dict[str, Model]()
    for name in (name for name, (_, models) in sums.items() if None not in models):
        models = read_sums(dyadic, name)[1]
        if models and models[0] is not None:
            coarse[name] = models[0]
    # A scale that is no power of two, where it may have one.
    scale = 0.8 * short.scale if "scale" in target.takes else short.scale
    rounded = read(_draws(target, replace(short, pattern="normal", scale=scale), coarse))
    for reading in rounded:
        if AGAIN in reading.parts.get("k", reading.parts.get("q", ())):
            sums[reading.of] = read_sums(even, reading.of, reading)
    added = [reading for reading, _ in sums.values()]
    if case.dtype == "float32":
        added = [_implied(reading, rounded) for reading in added]
    absent = tuple(f"{name} is not given" for name in PRODUCTS if name not in given)
    return Contract(target.name, even.at(0).case, case.seed, (*rounded, *added), absent)


def _implied(sums: Reading, rounded: Sequence[Reading]) -> Reading:
    """Of float32: every way to round ends in a sum in float32, so where one fits, that does.

    In TF32 a lazy kernel rounds what tau adds to P, so that dyadic values show more than its sums.
    """
    is_known = any(one.of == sums.of and one.fits for one in rounded)
    return sums if sums.fits or not is_known else replace(sums, fits=(sums.nearest,), differing=0)


def _draws(target: Target, case: Case, models: Mapping[str, Model] = MappingProxyType({})) -> Draws:
    """The target on a case, contiguous, with the case's seed and those that follow."""

    def run(number: int) -> GroupedProblem:
        drawn = replace(case, seed=case.seed + number)
        inputs = inputs_of(experiment_of(drawn, target), ())
        trace = run_target(target, drawn, inputs).trace
        assert trace is not None  # what is contiguous may not be refused
        return GroupedProblem(drawn, attention_of(drawn, inputs.values), trace, models)

    return Draws(run, _DRAWS)
