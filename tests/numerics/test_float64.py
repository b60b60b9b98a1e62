"""Where float64 is slow its products are split: no verdict changes, and what the reference errs by is in the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given

from gradprobe.inputs.draw import draw
from gradprobe.model.failures import UsageFailure
from gradprobe.model.report import SplitProducts
from gradprobe.numerics import float64, products, sieve
from gradprobe.numerics.budget import tile_budget
from gradprobe.numerics.compare import attention_of, compare
from gradprobe.numerics.declared_precision import exactly, long_sum, precision_of
from gradprobe.numerics.float64 import VARIABLE, SplitCounts, Way, multiplying, products_of, way_on
from gradprobe.numerics.own_error import own_error
from gradprobe.numerics.sieve import Sieve
from gradprobe.reference import evaluate, tiles
from gradprobe.runtime.trace import Trace
from tests.emulated import Arithmetic, case_of, ran
from tests.numerics.test_least import problem_of
from tests.sampling import DRAWS, tries

CPU = torch.device("cpu")
FLOAT32 = precision_of("float32", "ieee")


@pytest.fixture(autouse=True)
def split(monkeypatch):
    monkeypatch.setenv(VARIABLE, "split")


def as_wrong_as_they_may_be(random):
    """In place of `split_product`: off by all that was wanted, one way or either way."""
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    alike = random.random() < 0.5

    def off(a, b, wanted):
        product = a @ b
        sign = torch.ones_like(product) if alike else torch.randn(product.shape, generator=generator).sign()
        return product + wanted * sign * (a.abs() @ b.abs())

    return off


@tries(push=12, night=3_000)
@given(random=DRAWS)
def test_what_the_reference_errs_by_is_in_the_budget(random):
    case, x, tile, precision = problem_of(random)
    true, counts = evaluate(x, tile), SplitCounts()
    with pytest.MonkeyPatch.context() as patch, multiplying(CPU, precision, counts):
        patch.setattr(products, "split_product", as_wrong_as_they_may_be(random))
        came, share = evaluate(x, tile), float64.split_share()
        budget = tile_budget(x, tile, came, precision)
    assert counts.split >= 6
    added = own_error(x, tile, true, precision, share)
    plain = tile_budget(x, tile, came, precision)
    undecided = plain.undecided if case.family == "lazy" else torch.zeros_like(came["valid"])
    for name in added.keys() & true.keys():
        if undecided.any() and name not in ("LSE", "P", "O", "dPE", "dV"):
            continue  # an entry on the kink may fall either way, and what flips do is in the budget already
        off = (came[name] - true[name]).abs().masked_fill(came[name] == true[name], 0.0)
        rounded = 2.0**-44 * (true[name].abs() + (true[name].abs().max() if name != "P" else 0.0))
        assert bool((off <= added[name] * (1 + 2.0**-6) + rounded).all()), name
    for whole, without in ((budget.rows, plain.rows), (budget.sums, plain.sums), (budget.squares, plain.squares)):
        for name in whole:
            own = 0.0 if name == "dP" or whole is budget.squares else added[name] * (1 - 2.0**-6)
            assert bool((whole[name] >= without[name] * (1 - 2.0**-20) + own).all()), name


def test_what_scores_lse_and_delta_err_by_enters_ds_and_dsink_in_full():
    case = case_of("softmax", batch=1, heads=2, seqlen=8, softcap=5.0, sinks=True, bias=True, bias_axes="bhmn")
    x = attention_of(case, {name: value.abs() for name, value in draw(case).items()})
    (tile,), share = tiles(x), 2.0**-10
    true, eta = evaluate(x, tile), share * FLOAT32.accumulate * long_sum(case.head_dim)
    added = own_error(x, tile, true, FLOAT32, share)
    # Nothing of what is put in is below 0, so every score is off by as much of it as its product.
    of_scores = evaluate(replace(x, q=x.q * (1 + eta)), tile, true)["dS"] - true["dS"]
    moved = true | {"LSE": true["LSE"] - added["LSE"], "delta": true["delta"] + added["delta"]}
    of_rows = evaluate(x, tile, moved)["dSink"] - true["dSink"]
    for off, known in ((of_scores, added["dS"] - added["dBias"]), (of_rows, added["dSink"])):
        used = off.abs() / known
        assert 0.98 < used.max() < 1.01


@tries(push=3, night=500)
@given(random=DRAWS)
def test_no_verdict_on_one_element_changes(random):
    dtype, family = random.choice(["float32", "float16", "bfloat16"]), random.choice(["softmax", "lazy"])
    options = {"causal": True, "kv_heads": 1} if family == "softmax" else {"bias": True}
    case = case_of(family, batch=1, heads=2, seqlen=50, head_dim=16, dtype=dtype, **options)
    values, precision = draw(case), precision_of(dtype, "ieee")
    trace = ran(case, Arithmetic(tensor_core=dtype != "float32"), values=values)
    x, name = attention_of(case, values), random.choice([*trace.values])
    spoilt, plain = trace.values[name].clone(), compare(case, x, trace, precision)
    at = random.randrange(spoilt.numel())
    allowed_there = float(plain.bounds[name].flatten()[at]) if name in plain.bounds else 1e-4
    spoilt.view(-1)[at] += random.choice([0.0, 0.5, 0.9, 1.2, 3.0, 1e6, float("nan")]) * allowed_there
    spoilt_trace = Trace({**trace.values, name: spoilt}, trace.sources)
    found = []
    for way in float64.WAYS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, way)
            patch.setattr(sieve, "LEAST_SCORES", 0)
            with multiplying(CPU, precision, SplitCounts()):
                by_sieve = Sieve().sift(case, values, spoilt_trace, precision)
                whole = compare(case, x, spoilt_trace, precision)
        found.append((by_sieve is not None, {key: (one.status, one.mismatched) for key, one in whole.findings.items()}))
        assert by_sieve is None or whole.matches
    assert found[0] == found[1]


def test_every_product_inside_is_answered_and_none_outside():
    a, b = torch.rand(2, 5, 30, dtype=torch.double), torch.rand(2, 30, 4, dtype=torch.double)
    counts, into = SplitCounts(), torch.ones(2, 5, 4, dtype=torch.double)
    with multiplying(CPU, FLOAT32, counts), multiplying(CPU, FLOAT32, SplitCounts()):
        found = [a @ b, a[0] @ b[0], torch.einsum("bmk,bkn->bmn", a, b), into.baddbmm_(a, b, beta=0.5, alpha=2.0)]
        assert counts.split == 4
        empty = a[:, :, :0] @ b[:, :0]
        odd = a.index_fill(2, torch.tensor(3), float("nan")) @ b
        assert (counts.split, counts.native) == (4, 1)
        assert (a.float() @ b.float()).dtype == torch.float
        assert float64.split_share() > 0
    for one, due in zip(found, [a @ b, a[0] @ b[0], a @ b, 0.5 + 2 * (a @ b)], strict=True):
        torch.testing.assert_close(one, due, rtol=1e-12, atol=0.0)
    assert not empty.any()
    assert bool(odd.isnan().all())
    assert (counts.split, counts.native, float64.split_share()) == (4, 1, 0.0)


def test_values_that_leave_nothing_to_round_stay_with_float64():
    with multiplying(CPU, exactly(precision_of("float16", "ieee")), SplitCounts()):
        assert float64.split_share() == 0


def test_a_cpu_keeps_float64_and_another_device_what_is_faster(monkeypatch):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(float64, "TIMED", ((1, 2, 3), (1, 3, 2)))
    assert way_on(CPU) == Way(False)
    for seconds, is_split in (([5.0, 1.0], True), ([1.1, 1.0], False), ([1.0, 9.0], False)):
        monkeypatch.setattr(float64, "_seconds", lambda *_, left=seconds: left.pop(0))
        assert float64._measured.__wrapped__(CPU).is_split is is_split


def test_what_was_measured_is_told_and_nothing_where_nothing_was_split(monkeypatch):
    monkeypatch.setattr(float64, "way_on", lambda device: Way(True, ratio=5.25))
    assert products_of(SplitCounts(split=3, native=1), CPU) == SplitProducts(split=3, native=1, ratio=5.25)
    assert products_of(SplitCounts(native=7), CPU) is None


def test_a_word_that_is_no_way_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(UsageFailure, match="GRADPROBE_FLOAT64 must be native or split, got 'fast'"):
        way_on(CPU)
