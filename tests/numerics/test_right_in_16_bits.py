"""Right kernels of the arithmetics in use are right, and errors of twice their roundings in one head are found."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor

from gradprobe.model.case import Case
from gradprobe.model.resolution import resolve
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.evenness import excess, heads_by_result, most, student
from gradprobe.numerics.evidence import Measured
from gradprobe.numerics.head_errors import steepest
from gradprobe.numerics.rounding_spread import rounding
from gradprobe.probing.experiment import experiment_of, inputs_of
from gradprobe.probing.measure import measure
from gradprobe.runtime.trace import Trace, read_trace
from tests.emulated import target_of
from tests.numerics.drawn_kernels import Roundings, backward, drawn
from tests.probe import probe
from tests.sampling import sampled

# From so many rows on twice the error is told from chance, where a head uses half of what is allowed beside others.
TOLD = 64
LEAST = 1.5


def case_of(random: Random, seed: int, least: int = 1, most: int = 600) -> Case:
    lengths = (random.randint(1, 32), random.randint(1, 150), random.randint(1, 600))
    heads = random.choice((2, 4))
    options = {
        "batch": 1, "heads": heads, "kv_heads": heads // random.choice((1, 1, 2)), "seed": seed, "device": "cpu",
        "seqlen": min(max(random.choice(lengths), least), most), "head_dim": random.choice((16, 24, 32, 64)),
        "dtype": random.choice(("float16", "bfloat16")), "causal": random.random() < 0.5,
    }  # fmt: skip
    return resolve(options, "softmax", takes_bias=True)


class Judge:
    """One kernel on one case, and whatever else comes in place of its results."""

    def __init__(self, case: Case, how: Roundings) -> None:
        def kernel(q, k, v, do, causal=False):
            return backward(q, k, v, do, how, causal=causal)

        self.case, self.experiment = case, experiment_of(case, target_of(kernel))
        self.inputs = inputs_of(self.experiment, ())
        q, k, v, do = (self.experiment.values[name] for name in ("q", "k", "v", "do"))
        self.results = backward(q, k, v, do, how, causal=case.causal)

    def __call__(self, results: dict[str, Tensor]) -> Measured:
        return measure(self.experiment, self.inputs, self.trace(results))

    def trace(self, results: dict[str, Tensor]) -> Trace:
        return read_trace(results, self.case, "drawn")

    def doubled(self, right: Measured, name: str, head: int) -> dict[str, Tensor]:
        """The results with errors of one head twice as large."""
        results = self.results | {name: self.results[name].clone()}
        place = results[name][0, head]
        place.copy_((2 * place.double() - right.comparison.expected[name][0, head]).to(place.dtype))
        return results

    def scattered(self, right: Measured, name: str, head: int) -> dict[str, Tensor]:
        """The results with errors of that size, drawn, beside those of one head."""
        results = self.results | {name: self.results[name].clone()}
        place = results[name][0, head]
        errors = place.double() - right.comparison.expected[name][0, head]
        random = torch.Generator().manual_seed(0)
        noise = torch.randn(errors.shape, generator=random, dtype=torch.double)
        place.copy_((place.double() + 2 * errors.square().mean().sqrt() * noise).to(place.dtype))
        return results

    def times_as_large(
        self, right: Measured, results: dict[str, Tensor], name: str, head: int
    ) -> float:
        """How many times as large the errors of a head are as they were."""
        expected = right.comparison.expected[name][0, head]
        after, before = (one[name][0, head].double() - expected for one in (results, self.results))
        return float(after.square().mean().sqrt() / before.square().mean().sqrt().clamp(min=1e-300))


@sampled("seed", range(300), (4, 18, 36, 44, 54, 94, 102, 126, 136, 204))
def test_a_right_kernel_is_not_accused(seed):
    random = Random(seed)
    how = drawn(random)
    judge = Judge(case_of(random, seed), how)
    found = judge(judge.results)
    ratios = {name: finding.max_ratio for name, finding in found.comparison.findings.items()}
    assert found.matches, (how, judge.case, ratios, found.broken)


@sampled("seed", range(300), (0, 3, 8, 50))
def test_twice_the_error_in_one_head_is_found(seed):
    random = Random(seed)
    how = drawn(random)
    case = case_of(random, seed, least=TOLD, most=200 if seed < 10 else 600)
    case = replace(case, kv_heads=max(case.kv_heads, 2))
    judge = Judge(case, how)
    right, name = judge(judge.results), random.choice(("dQ", "dK", "dV"))
    head = random.randrange(judge.results[name].shape[1])
    heads = heads_by_result(case, right.x, judge.trace(judge.results), right.comparison)
    (own,) = (one for one in heads[name] if one.place == (0, head))
    used = excess(
        own, [one for one in heads[name] if one is not own], sum(map(len, heads.values()))
    )
    for results in (judge.doubled(right, name, head), judge.scattered(right, name, head)):
        # Twice the error of storing alone is stored as the same number again.
        times = judge.times_as_large(right, results, name, head)
        if times > LEAST and used * times > 1.05:
            assert not judge(results).matches, (how, case, name)


@pytest.mark.parametrize(
    ("rate", "freedom", "exceeded"), [(1e-3, 5, 5.893), (1e-4, 10, 5.694), (5e-7, 1e9, 4.892)]
)
def test_how_often_chance_exceeds_is_students_t(rate, freedom, exceeded):
    assert student(rate, freedom) == pytest.approx(exceeded, rel=0.02)


def test_the_most_that_one_head_has_beside_another_is_a_knapsack():
    of, held = (
        {name: torch.tensor(one) for name, one in zip("abc", shares, strict=True)}
        for shares in ((4.0, 3.0, 1.0), (1.0, 1.0, 2.0))
    )
    often = {"a": 1.0, "b": 2.0, "c": 9.0}
    found = [float(most(torch.tensor(size), of, held, often)) for size in (0.5, 2.0, 5.0)]
    assert found == [2.0, 4.0 + 3.0, 4.0 + 6.0 + 1.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_variance_of_a_rounding_is_that_of_many(dtype):
    random = torch.Generator().manual_seed(0)
    values = torch.rand(10_000, generator=random, dtype=torch.double).exp()
    predicted = rounding(precision_of(str(dtype).removeprefix("torch."), "ieee"), values).sum()
    came = (values.to(dtype) - values).square().sum()
    assert float(came / predicted) == pytest.approx(1.0, abs=0.03)


@sampled("seed", range(300), (15, 144))
def test_twice_the_error_of_a_head_alone_is_found_where_a_slope_is_known_to_a_half(seed):
    random = Random(seed)
    how = drawn(random)
    case = replace(case_of(random, seed, least=TOLD), kv_heads=1)
    judge, name = Judge(case, how), random.choice(("dK", "dV"))
    right = judge(judge.results)
    results, (x, precision) = judge.doubled(right, name, 0), (right.x, right.comparison.precision)
    heads = heads_by_result(case, x, judge.trace(results), right.comparison)
    expected, checks = right.comparison.expected[name][0, 0], sum(map(len, heads.values()))
    twice = 2 * (judge.results[name][0, 0].double() - expected)
    known, _ = steepest(x, name, heads[name][0], twice, expected, precision, checks)
    assert known <= 1.05 or not judge(results).matches, (how, case, name)


@pytest.mark.parametrize(
    ("kv_heads", "head", "said"), [(1, 0, " times as much as roundings make it"), (2, 1, "")]
)
def test_twice_the_error_of_a_head_alone_or_beside_another_is_told(kv_heads, head, said):
    case = replace(case_of(Random(3), 3, least=200, most=200), kv_heads=kv_heads)
    judge = Judge(case, Roundings(frozenset({"PE", "dS"})))
    right = judge(judge.results)
    found = judge(judge.doubled(right, "dK", head))
    assert found.comparison.matches, "no single element tells"
    (broken,) = found.broken
    assert broken.name.startswith(f"I11 heads round alike: dK of batch 0, head {head} errs ")
    assert broken.name.endswith(said)


def test_what_was_needed_is_named():
    names = ("product", "scores", "P", "PE", "dP", "dS", "scaled dS")
    case = resolve(
        {"batch": 1, "heads": 2, "seqlen": 256, "head_dim": 32, "dtype": "bfloat16", "device": "cpu"},
        "softmax", takes_bias=True,
    )  # fmt: skip
    judge = Judge(case, Roundings(frozenset(names), delta="P dP"))
    (found,) = judge(judge.results).coarser
    assert found.sentence.startswith("coarser than its contract: rounds S to bfloat16 ")
    assert found.sentence.endswith("of scores of 26 and more, P is off by a tenth")
    strict = Judge(replace(case, strict=True), Roundings(frozenset(names), delta="P dP"))
    assert not strict(strict.results).matches


def test_one_wrong_element_is_no_rounding():
    """It is within the wider budget, and no element of a right kernel stands out so far."""
    judge = Judge(case_of(Random(3), 3, least=200, most=200), Roundings(frozenset({"PE", "dS"})))
    right = judge(judge.results)
    for name in ("dQ", "dV"):
        finding, bound = right.comparison.findings[name], right.comparison.bounds[name]
        results = judge.results | {name: judge.results[name].clone()}
        results[name][0, 1, 10, 1] += (2.5 * bound[0, 1, 10, 1]).to(results[name].dtype)
        assert finding.mismatched == 0
        assert not judge(results).matches


def test_what_float32_leaves_of_a_gradient_that_cancels_is_no_rounding():
    """Of a v of one number dS and dK are zero: one head may keep a remainder of its sums where others round to zero."""
    case = resolve(
        {"batch": 2, "heads": 3, "seqlen": 37, "head_dim": 16, "dtype": "float16", "device": "cpu"},
        "softmax", takes_bias=True,
    )  # fmt: skip

    def kernel(q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> dict[str, Tensor]:
        results = backward(q, k, v, do, Roundings(frozenset()), causal=False)
        results["dK"].zero_()[1, 2, 5, 1] = 2.0**-24
        return results

    found = probe(replace(case, layouts=(("v", "expanded"),)), target_of(kernel), why=False)
    assert [measured.broken for _, measured in found.measured] == [[]]
