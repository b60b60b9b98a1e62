"""A large run is told block by block as it is at once; what passes the sieve is what the whole budget lets pass."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given

from gradprobe.inputs.draw import draw
from gradprobe.numerics import sieve
from gradprobe.numerics.compare import attention_of, compare
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.locate import locate
from gradprobe.numerics.sieve import LargeRun, LargeRuns, errors_of
from gradprobe.numerics.totals import TOTALS
from gradprobe.reference.attention import MATRICES
from gradprobe.runtime.run import Trace
from tests.emulated import Arithmetic, case_of, ran
from tests.sampling import DRAWS, tries

GRADIENTS = ("O", "dQ", "dK", "dV")
EVERYTHING = (*GRADIENTS, "LSE", "P", "dP", "delta", "dS")
NAN = float("nan")
OPTIONS = (
    {"window": (20, 3)}, {"kv_heads": 1, "causal": True}, {"seqlen_q": 90, "seqlen_k": 60, "causal": True},
    {"softcap": 1.5, "alibi": True}, {"dropout": 0.3}, {"mask": "dead-rows"}, {"seqlens": (70, 3)},
    {"bias": True, "causal": True, "sinks": True}, {"bias": True, "bias_axes": "m", "softcap": 1.5},
    {"batch": 1, "cu_seqlens": (0, 17, 17, 70), "causal": True},
)  # fmt: skip
# Of tau below 0 some entries lie on the ReLU's kink; of zeros in q all of a row's P are alike.
OF_LAZY = (
    {"tau": (-1.0, -0.5)}, {"batch": 2, "tau": (-1.0, 1.0), "seqlens": (70, 3)}, {"bias": True, "bias_window": 9},
)  # fmt: skip
HOW = {
    "float32": Arithmetic(delta_from_o=True),
    "float16": Arithmetic(tensor_core=True, delta_from_o=True),
    "bfloat16": Arithmetic(tensor_core=True, delta_from_o=True),
}
ALL = [("softmax", options) for options in OPTIONS] + [("lazy", options) for options in OF_LAZY]
SPOILT = [ALL[at] for at in (0, 1, 2, 3, 7, 8, *range(10, 13))]


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch):
    monkeypatch.setattr(sieve, "TILE_ELEMENTS", {"cpu": 1 << 12})
    monkeypatch.setattr(sieve, "ROWS", {"cpu": 32})


def case_with(dtype="float32", family="softmax", **options):
    lengths = {} if "cu_seqlens" in options else {"seqlen": 70}
    return case_of(
        family, **{"batch": 2, "heads": 2, "head_dim": 16, "dtype": dtype} | lengths | options
    )


def walked(case, values, trace, precision, runs=None):
    never = lambda: pytest.fail("the whole case was compared")  # noqa: E731
    return (runs or LargeRuns()).compared(LargeRun(case, values, trace, precision), never)


def right(case, names=GRADIENTS):
    values = draw(case)
    return values, ran(case, HOW[case.dtype], values=values, names=names)


@pytest.mark.parametrize(
    ("family", "options", "dtype"),
    [(*each, ("float32", "bfloat16")[at % 2]) for at, each in enumerate(ALL)],
    ids=str,
)
def test_a_right_run_passes_with_ratios_that_are_not_too_small(
    family, options, dtype, monkeypatch
):
    case = case_with(dtype, family, **options)
    values, trace = right(case, names=None)
    precision = precision_of(dtype, "ieee")
    unasked = lambda parts, block: pytest.fail("the whole budget was asked")  # noqa: E731
    monkeypatch.setattr(sieve._JudgedRun, "by_the_whole_budget", unasked)
    passed = walked(case, values, trace, precision)
    whole = compare(case, attention_of(case, values), trace, precision)
    assert whole.matches
    assert passed.matches
    for name, finding in passed.findings.items():
        assert finding.total == whole.findings[name].total
        assert bool((finding.ratio >= whole.findings[name].ratio * (1 - 1e-9)).all()), name
        max_abs_err = pytest.approx(whole.findings[name].max_abs_err, rel=1e-6)
        assert finding.max_abs_err == max_abs_err, name


def on_the_kink(values, random):
    """The values, some rows of them with P so alike that tau = -1 brings them to the ReLU's kink."""
    alike = random.random() < 0.3
    return values | {"q": values["q"] * (random.choice([0.0, 1e-7, 1e-3]) if alike else 1.0)}


@tries(push=10, night=2_000)
@given(random=DRAWS)
def test_one_element_is_judged_as_the_whole_budget_judges_it(random):
    dtype, (family, options) = random.choice([*HOW]), random.choice(SPOILT)
    case = case_with(dtype, family, **{"batch": 1, **options})
    values = on_the_kink(draw(case), random) if family == "lazy" else draw(case)
    for at in ("q", "k", "v", "do"):
        values[at] = values[at] * 10.0 ** random.choice([-12, -4, 0, 0, 0, 1])
    trace = ran(case, HOW[dtype], values=values)
    precision, x = precision_of(dtype, "ieee"), attention_of(case, values)
    name = random.choice([*trace.values])
    spoilt = trace.values[name].clone()
    at = random.randrange(spoilt.numel())
    whole = compare(case, x, trace, precision)
    bound = whole.judged(trace, name).bound.flatten()[at] if name not in MATRICES else 1e-3
    by = random.choice([0.2, 0.9, 0.999, 1.001, 1.1, 3.0, 1e6, float("nan")])
    spoilt.view(-1)[at] += by * bound * random.choice([-1, 1])
    spoilt_trace = Trace({**trace.values, name: spoilt}, trace.sources)
    found = walked(case, values, spoilt_trace, precision)
    of_whole = compare(case, x, spoilt_trace, precision, blame=False)
    # What all blocks add to is told by the whole budget of all of them alone.
    assert (
        found.matches == of_whole.matches
        if found
        else not of_whole.matches or TOTALS.keys() & trace.values.keys()
    )


def test_the_smallest_number_is_wrong_where_0_is_due():
    name = "dP"
    case = case_with("float32", "softmax", causal=True, seqlen=40)
    values, trace = right(case, names=None)
    spoilt = {**trace.values, name: trace.values[name].clone()}
    spoilt[name][0, 0, 3, 20] = 2.0**-149  # a key of the tile that its row does not see
    precision = precision_of("float32", "ieee")
    assert walked(case, values, trace, precision).matches
    found = walked(case, values, Trace(spoilt, trace.sources), precision)
    assert found.findings[name].wrong.tolist() == [[1, 0], [0, 0]]


def test_a_further_run_needs_no_reference_and_is_judged_by_its_own_values(monkeypatch):
    case = case_with("float16", causal=True)
    values, trace = right(case)
    runs, precision = LargeRuns(), precision_of("float16", "ieee")
    assert walked(case, values, trace, precision, runs).matches
    other = ran(case, Arithmetic(backwards=True, tile=64), values=values, names=GRADIENTS)
    assert any(not other.values[name].equal(trace.values[name]) for name in GRADIENTS)
    with monkeypatch.context() as patch:
        unasked = lambda *_: pytest.fail("the reference was evaluated again")  # noqa: E731
        patch.setattr(sieve, "evaluate", unasked)
        again = walked(case, values, other, precision, runs)
    assert again.matches
    new = walked(case, values, other, precision)
    assert all(one.total == new.findings[name].total for name, one in again.findings.items())
    wrong = other.values["dK"].clone()
    wrong[1, 0, 5, 3] += 0.5
    spoilt = Trace({**other.values, "dK": wrong}, other.sources)
    found = walked(case, values, spoilt, precision, runs)
    assert found.findings["dK"].wrong.tolist() == [[0, 0], [1, 0]]
    moved = {**values, "q": values["q"].flip(2)}
    assert not walked(case, moved, trace, precision, runs).matches, (
        "other values, another problem"
    )


@pytest.mark.parametrize(
    ("error", "bound", "passes"),
    [(1.01, 1.0, False), (0.0, 0.0, True), (1e-300, 0.0, False), (NAN, 1.0, False)],
)  # fmt: skip
def test_what_is_within_its_bound_passes_and_a_nan_never(error, bound, passes):
    given = (torch.tensor([[[0.5, of]]], dtype=torch.double) for of in (error, bound))
    judged = errors_of(*given)
    assert judged.right.tolist() == [passes]


def times(name, factor, *place):
    return lambda values: values[name][place].mul_(factor)


FAULTS = {
    "one key head": times("dK", 1.01, 1, 1),
    "one query head": times("dQ", 1.1, 0, 3),
    "some rows of two heads": times("dV", NAN, slice(None), 0, slice(7, 9)),
    "dS, and what comes of it": lambda of: [
        times(name, 1.5, 1)(of) for name in ("dS", "dQ", "dK")
    ],
}


def run_of(fault, names):
    options = {"batch": 2, "heads": 4, "kv_heads": 2, "seqlen": 70, "head_dim": 16}
    case = case_of("softmax", **options, causal=True, dtype="float32")
    values = draw(case)
    trace = ran(case, HOW["float32"], values=values, names=names)
    came = {name: value.clone() for name, value in trace.values.items()}
    FAULTS[fault](came)
    return case, values, Trace(came, trace.sources), precision_of("float32", "ieee")


def told_of(finding):
    counts = finding.total, finding.non_finite, finding.status
    masks = (of.tolist() for of in (finding.wrong, finding.own, finding.wrong_rows))
    return (*counts, finding.first, finding.first_wrong, *masks)


@pytest.mark.parametrize("fault", FAULTS)
def test_findings_and_place_are_those_of_the_whole(fault, monkeypatch):
    names = EVERYTHING if fault.startswith("dS") else GRADIENTS
    if fault in ("one key head", "some rows of two heads"):  # of blocks of several
        monkeypatch.setattr(sieve, "key_heads_of_a_block", lambda run: run.case.kv_heads)
    case, values, trace, precision = run_of(fault, names)
    x = attention_of(case, values)
    whole, found = compare(case, x, trace, precision), walked(case, values, trace, precision)
    assert not whole.matches
    for name, finding in whole.findings.items():
        part = found.findings[name]
        assert told_of(part) == told_of(finding), name
        assert bool((part.ratio >= finding.ratio * (1 - 1e-9)).all())
    assert found.absent == whole.absent
    assert repr(locate(x, trace, found)) == repr(locate(x, trace, whole))


def test_what_is_inherited_in_one_block_is_not_promoted_for_a_fault_of_another(monkeypatch):
    case, values, trace, precision = run_of("one query head", GRADIENTS)
    by_budget = LargeRun.by_budget

    def with_an_inherited_one(run, block, *, blame=False):
        comparison = by_budget(run, block, blame=blame)
        finding = comparison.findings["dV"]
        wrong = replace(finding, wrong=finding.wrong + 1) if block.batch == 0 else finding
        return replace(comparison, findings={**comparison.findings, "dV": wrong})

    monkeypatch.setattr(LargeRun, "by_budget", with_an_inherited_one)
    together = walked(case, values, trace, precision)
    assert [together.findings[name].status for name in ("dV", "dQ")] == ["inherited", "mismatch"]
