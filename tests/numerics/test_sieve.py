"""What passes the sieve is what the whole budget lets pass, and what it says of it holds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given

from gradprobe.inputs.draw import draw
from gradprobe.model.layout_run import HIDDEN, MATCH, MISMATCH
from gradprobe.numerics import least, sieve, sifted, walks
from gradprobe.numerics.block import blocks
from gradprobe.numerics.compare import attention_of, compare
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.identities import agreement, allowed
from gradprobe.numerics.sieve import Sieve
from gradprobe.numerics.totals import TOTALS
from gradprobe.pipeline.probe import probe
from gradprobe.reference import evaluate
from gradprobe.reference.attention import MATRICES
from gradprobe.runtime.trace import Trace
from tests.emulated import Arithmetic, case_of, changed, ran, softmax, target_of
from tests.sampling import DRAWS, tries

GRADIENTS = ("O", "dQ", "dK", "dV")
NAN = float("nan")
OPTIONS = (
    {"causal": True}, {"window": (20, 3)}, {"kv_heads": 1, "causal": True},
    {"seqlen_q": 90, "seqlen_k": 60, "causal": True},
    {"softcap": 1.5, "alibi": True}, {"sinks": True}, {"dropout": 0.3}, {"mask": "dead-rows"}, {"seqlens": (70, 3)},
    {"bias": True, "causal": True, "sinks": True}, {"bias": True, "bias_axes": "m", "softcap": 1.5},
    {"bias": True, "bias_axes": "bh"}, {"batch": 1, "cu_seqlens": (0, 17, 17, 70), "causal": True},
)  # fmt: skip
# Of tau below 0 some entries lie on the ReLU's kink; of zeros in q all of a row's P are alike.
OF_LAZY = (
    {"tau": (-1.0, -0.5)}, {"batch": 2, "tau": (-1.0, 1.0), "seqlens": (70, 3)},
    {"bias": True, "bias_window": 9}, {"bias": True},
)  # fmt: skip
HOW = {
    "float32": Arithmetic(delta_from_o=True),
    "float16": Arithmetic(tensor_core=True, delta_from_o=True),
    "bfloat16": Arithmetic(tensor_core=True, delta_from_o=True),
}
ALL = [("softmax", options) for options in OPTIONS] + [("lazy", options) for options in OF_LAZY]

SPOILT = [ALL[at] for at in (0, 1, 2, 3, 4, 9, 10, 11, *range(13, 17))]


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch):
    monkeypatch.setattr(sieve, "LEAST_SCORES", 0)
    monkeypatch.setattr(walks, "TILE_ELEMENTS", {"cpu": 1 << 12})
    monkeypatch.setattr(walks, "ROWS", {"cpu": 32})


def case_with(dtype="float32", family="softmax", **options):
    lengths = {} if "cu_seqlens" in options else {"seqlen": 70}
    return case_of(family, **{"batch": 2, "heads": 2, "head_dim": 16, "dtype": dtype} | lengths | options)


def target(fault=lambda name, tensor: tensor):
    def emulated(q, k, v, do, *, causal=False, scale=None):
        results = softmax(q, k, v, do, causal=causal, scale=scale, fault=fault)
        return {name: results[name] for name in GRADIENTS}

    return target_of(emulated)


def findings_of(passed):
    return passed.comparison(lambda: pytest.fail("the whole case was compared")).findings


def letters(finding):
    """Those of all maps."""
    return bytes(finding.signs.flatten().tolist()).decode()


def right(case, names=GRADIENTS):
    values = draw(case)
    return values, ran(case, HOW[case.dtype], values=values, names=names)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "options"), ALL, ids=str)
def test_a_right_run_passes_with_ratios_that_are_not_too_small(family, options, dtype):
    case = case_with(dtype, family, **options)
    values, trace = right(case, names=None)
    precision = precision_of(dtype, "ieee")
    passed = Sieve().sift(case, values, trace, precision)
    whole = compare(case, attention_of(case, values), trace, precision)
    assert whole.matches
    assert passed is not None
    for name, finding in findings_of(passed).items():
        assert finding.total == whole.findings[name].total
        assert bool((finding.ratio >= whole.findings[name].ratio * (1 - 1e-9)).all()), name
        assert finding.max_abs_err == pytest.approx(whole.findings[name].max_abs_err, rel=1e-6), name
        bounds, exact = letters(finding), letters(whole.findings[name])
        assert finding.bounded
        assert all(bound.lower() >= sign.lower() for bound, sign in zip(bounds, exact, strict=True)), name
        if name in MATRICES and not options.keys() & {"mask", "seqlens"}:
            assert [bound == HIDDEN for bound in bounds] == [sign == HIDDEN for sign in exact], name
    assert {(one.key, one.of) for one in passed.invariants} >= {("I3", "target"), ("I4", "reference")}


def on_the_kink(values, random):
    """The values, some rows of them with P so alike that tau = -1 brings them to the ReLU's kink."""
    alike = random.random() < 0.3
    return values | {"q": values["q"] * (random.choice([0.0, 1e-7, 1e-3]) if alike else 1.0)}


@tries(push=40, night=2_000)
@given(random=DRAWS)
def test_one_element_is_judged_as_the_whole_budget_judges_it(random):
    dtype, (family, options) = random.choice(["float32", "float16", "bfloat16"]), random.choice(SPOILT)
    case = case_with(dtype, family, **{"batch": 1, **options})
    values = on_the_kink(draw(case), random) if family == "lazy" else draw(case)
    trace = ran(case, HOW[dtype], values=values)
    precision, x = precision_of(dtype, "ieee"), attention_of(case, values)
    name = random.choice([*trace.values])
    spoilt = trace.values[name].clone()
    at = random.randrange(spoilt.numel())
    whole = compare(case, x, trace, precision)
    bound = allowed(whole, {name: spoilt.dtype})[name].flatten()[at] if name not in MATRICES else 1e-3
    by = random.choice([0.2, 0.9, 0.999, 1.001, 1.1, 3.0, 1e6, float("nan")])
    spoilt.view(-1)[at] += by * bound * random.choice([-1, 1])
    spoilt_trace = Trace({**trace.values, name: spoilt}, trace.sources)
    passed = Sieve().sift(case, values, spoilt_trace, precision)
    of_whole = compare(case, x, spoilt_trace, precision, blame=False)
    # What all blocks add to is told by the whole budget of all of them alone.
    assert passed is None or of_whole.matches
    assert passed is not None or not of_whole.matches or name in TOTALS


def test_what_fails_the_sieve_alone_is_judged_block_by_block(monkeypatch):
    case = case_with("bfloat16", causal=True)
    values, trace = right(case)
    monkeypatch.setattr(least, "weight", lambda precision, terms: 0.0)
    asked = []
    whole = sifted.SiftedRun.by_the_whole_budget
    monkeypatch.setattr(
        sifted.SiftedRun, "by_the_whole_budget", lambda self, block: asked.append(block) or whole(self, block)
    )
    passed = Sieve().sift(case, values, trace, precision_of("bfloat16", "ieee"))
    assert passed is not None
    assert asked
    of_whole = compare(case, attention_of(case, values), trace, precision_of("bfloat16", "ieee"))
    block = asked[0]
    exact = of_whole.findings["dQ"].ratio[block.batch, block.heads]
    torch.testing.assert_close(findings_of(passed)["dQ"].ratio[block.batch, block.heads], exact, rtol=1e-6, atol=0.0)


def test_a_further_run_needs_no_reference_and_is_judged_by_its_own_values(monkeypatch):
    case = case_with("float16", causal=True)
    values, trace = right(case)
    sift = Sieve()
    precision = precision_of("float16", "ieee")
    assert sift.sift(case, values, trace, precision) is not None
    monkeypatch.setattr(walks, "evaluate", lambda *_: pytest.fail("the reference was evaluated again"))
    other = ran(case, Arithmetic(backwards=True, tile=64), values=values, names=GRADIENTS)
    assert any(not other.values[name].equal(trace.values[name]) for name in GRADIENTS)
    again = sift.sift(case, values, other, precision)
    assert again is not None
    assert {(one.key, one.of) for one in again.invariants} == {
        (key, of) for key in ("I1", "I2", "I3", "I4") for of in ("target", "reference")
    }
    monkeypatch.undo()
    monkeypatch.setattr(sieve, "LEAST_SCORES", 0)
    wrong = other.values["dK"].clone()
    wrong[1, 0, 5, 3] += 0.5
    assert sift.sift(case, values, Trace({**other.values, "dK": wrong}, other.sources), precision) is None
    moved = {**values, "q": values["q"].flip(2)}
    assert sift.sift(case, moved, trace, precision) is None, "other values, another problem"


@pytest.mark.parametrize("name", ["dS", "P"])
def test_a_fault_is_told_as_without_the_sieve(name, monkeypatch):
    wrong = target(changed(name, lambda tensor: tensor[:, 1, 40:44].mul_(1.05)))
    told = []
    for least_scores in (0, 1 << 40):
        monkeypatch.setattr(sieve, "LEAST_SCORES", least_scores)
        report = probe(case_with(causal=True, batch=1), wrong, why=False)
        told.append([(run.layout, run.verdict, run.measured.first) for run in report.runs if run.measured])
    assert told[0] == told[1]
    assert told[0][0][1] == MISMATCH


def test_a_check_by_the_sieve_holds_the_identities_of_two_runs():
    report = probe(case_with("bfloat16", causal=True), target(), why=False)
    assert report.verdict == MATCH
    for run in report.runs:
        assert run.measured.comparison.by_sieve is not None
    keys = {one.key for run in report.runs for one in run.measured.invariants}
    assert keys == {"I1", "I2", "I3", "I4", "I10"}


def test_two_runs_that_differ_break_the_identity_by_the_whole_budget_alone(monkeypatch):
    """Half a budget apart is right, by whichever budget is asked; three of them are not."""
    case, precision = case_with("float32", causal=True), precision_of("float32", "ieee")
    values, trace = right(case)
    sifted = Sieve().sift(case, values, trace, precision)
    comparison = sifted.comparison(lambda: pytest.fail("the whole case was compared"))
    whole = compare(case, attention_of(case, values), trace, precision)
    bound = allowed(whole, {"dK": torch.float32})["dK"]
    for by, holds in ((0.5, True), (1.9, True), (3.0, False)):
        other = Trace({**trace.values, "dK": trace.values["dK"] + (by * bound).float()}, trace.sources)
        assert agreement("I10", case, trace, other, comparison).holds is holds
        assert agreement("I10", case, trace, other, whole).holds is holds


@pytest.mark.parametrize(
    ("error", "bound", "passes"),
    [
        (1.0, 1.0, True),
        (1.01, 1.0, False),
        (0.0, 0.0, True),
        (1e-300, 0.0, False),
        (NAN, 1.0, False),
        (0.0, NAN, False),
    ],
)
def test_what_is_within_its_bound_passes_and_a_nan_never(error, bound, passes):
    judged = walks._BlockJudgement(next(blocks(case_with(), 1)))
    judged.judge("dQ", *(torch.tensor([[[0.5, of]]], dtype=torch.double) for of in (error, bound)))
    assert [bool(one) for one in judged.passed] == [passes]


def test_a_further_runs_error_is_the_first_ones_and_what_lies_between_them():
    case, precision = case_with("float32", causal=True), precision_of("float32", "ieee")
    values, trace = right(case)
    known = Sieve().sift(case, values, trace, precision)
    bound = known.bounds["dK"].float()

    def with_errors_of(share):
        return Trace({**trace.values, "dK": trace.values["dK"] - known.errors["dK"] + share * bound}, trace.sources)

    first = Sieve().sift(case, values, with_errors_of(0.8), precision)
    assert sieve._again(first, with_errors_of(-0.8)) is not None
    assert sieve._again(first, with_errors_of(1.6)) is None


def test_a_reference_that_breaks_an_identity_lets_nothing_pass(monkeypatch):
    """Each element is within a budget of 2^-14 of which the reference may be off."""
    case, precision = case_with("float32", causal=True), precision_of("float32", "ieee")
    values, trace = right(case)

    def off(*given):
        found = evaluate(*given)
        return found | {"PE": found["PE"] * (1 + 1e-7)}

    monkeypatch.setattr(walks, "evaluate", off)
    assert Sieve().sift(case, values, trace, precision) is None


@pytest.mark.parametrize("name", MATRICES)
def test_the_smallest_number_does_not_pass_where_0_is_due(name):
    case = case_with("float32", "softmax", causal=True, seqlen=40)
    values, trace = right(case, names=None)
    spoilt = {**trace.values, name: trace.values[name].clone()}
    spoilt[name][0, 0, 3, 20] = 2.0**-149  # a key of the tile that its row does not see
    precision = precision_of("float32", "ieee")
    assert Sieve().sift(case, values, trace, precision) is not None
    assert Sieve().sift(case, values, Trace(spoilt, trace.sources), precision) is None


@pytest.mark.parametrize("options", [{"causal": True}, pytest.param({"kv_heads": 1}, marks=pytest.mark.nightly)])
def test_matrices_judged_in_one_pass_pass_with_the_same_rows_sums_and_identities(options, monkeypatch):
    case = case_with("float16", batch=1, seqlen=9, **options)
    values, precision = draw(case), precision_of("float16", "ieee")
    trace = ran(case, HOW["float16"], values=values)
    found = []
    for is_fused in (False, True):
        monkeypatch.setattr(walks, "_is_fused", lambda *_, of=is_fused: of)
        found.append(Sieve().sift(case, values, trace, precision))
    plain, in_one_pass = found
    for name in trace.values:
        for of in ("ratios", "rows", "squares", "largest"):
            torch.testing.assert_close(getattr(in_one_pass, of)[name], getattr(plain, of)[name], rtol=1e-5, atol=0.0)
    for one, other in zip(plain.invariants, in_one_pass.invariants, strict=True):
        assert (one.key, one.of, one.holds) == (other.key, other.of, other.holds)
        if one.of == "target":  # the reference's own rounding is no more than what sums in another order differ by
            assert other.budget == pytest.approx(one.budget, rel=1e-5)
    wrong = trace.values["dS"].clone()
    wrong[0, 1, 7, 5] += 0.5
    assert Sieve().sift(case, values, Trace({**trace.values, "dS": wrong}, trace.sources), precision) is None


@pytest.mark.parametrize(("gigabytes", "times"), [(8, 1), (24, 3), (32, 4), (80, 4)])
def test_tiles_of_short_cases_are_as_much_larger_as_a_gpu_has_room_for(gigabytes, times, monkeypatch):
    properties = SimpleNamespace(total_memory=gigabytes << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert [walks._for_short(torch.device(name)) for name in ("cpu", "cuda")] == [1, times]
