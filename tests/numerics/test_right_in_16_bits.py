"""Right kernels of the arithmetics in use are right, and errors of twice their roundings in one head are found."""

from dataclasses import replace
from random import Random

from torch import Tensor

from gradprobe.model.case import Case
from gradprobe.model.resolution import resolve
from gradprobe.numerics.evidence import MeasuredRun
from gradprobe.probing.experiment import experiment_of, inputs_of
from gradprobe.probing.measure import measure
from gradprobe.runtime.run import Trace, read_trace
from tests.emulated import target_of
from tests.numerics.drawn_kernels import Roundings, backward, drawn
from tests.probe import probe
from tests.sampling import sampled


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
    def __init__(self, case: Case, how: Roundings) -> None:
        def kernel(q, k, v, do, causal=False):
            return backward(q, k, v, do, how, causal=causal)

        self.case, self.experiment = case, experiment_of(case, target_of(kernel))
        self.inputs = inputs_of(self.experiment, ())
        q, k, v, do = (self.experiment.values[name] for name in ("q", "k", "v", "do"))
        self.results = backward(q, k, v, do, how, causal=case.causal)

    def __call__(self, results: dict[str, Tensor]) -> MeasuredRun:
        return measure(self.experiment, self.inputs, self.trace(results))

    def trace(self, results: dict[str, Tensor]) -> Trace:
        return read_trace(results, self.case, "drawn")

    def doubled(self, right: MeasuredRun, name: str, head: int) -> dict[str, Tensor]:
        results = self.results | {name: self.results[name].clone()}
        place = results[name][0, head]
        place.copy_(
            (2 * place.double() - right.comparison.expected[name][0, head]).to(place.dtype)
        )
        return results


@sampled("seed", range(300), (4, 36, 54, 102, 136))
def test_a_right_kernel_is_not_accused(seed):
    random = Random(seed)
    how = drawn(random)
    judge = Judge(case_of(random, seed), how)
    found = judge(judge.results)
    ratios = {name: finding.max_ratio for name, finding in found.comparison.findings.items()}
    assert found.matches, (how, judge.case, ratios, found.broken)


def test_twice_the_error_of_a_head_beside_another_is_told():
    case = replace(case_of(Random(3), 3, least=200, most=200), kv_heads=2)
    judge = Judge(case, Roundings(frozenset({"PE", "dS"})))
    found = judge(judge.doubled(judge(judge.results), "dK", 1))
    assert found.comparison.matches, "no single element tells"
    (broken,) = found.broken
    assert broken.name.startswith("I11 heads round alike: dK of batch 0, head 1 errs ")
    assert broken.name.endswith(" times as much as in the other heads")


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
