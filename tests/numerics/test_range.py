"""Values on which right arithmetic overflows accuse nobody: the case is refused, or the infinity is right."""

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.inputs.saved import SavedInputs
from gradprobe.model.failures import UsageFailure
from tests.cases import softmax_case
from tests.emulated import softmax, target_of
from tests.probe import probe

SMALL = {"batch": 1, "heads": 2, "head_dim": 8}


def times(factors, **options):
    """A case of 64 rows on saved values, some of which are multiplied."""
    items = draw(softmax_case(**SMALL, seqlen=64, **options)).items()
    values = {name: (value * factors.get(name, 1.0)).to(value.dtype) for name, value in items}
    case = softmax_case(**SMALL, seqlen=64, **options, inputs="real.pt", recover=False)
    return case, SavedInputs(values, {}, {})


@pytest.mark.parametrize(
    ("factors", "options", "words"),
    [
        ({"q": 1e20, "k": 1e20}, {}, r"S and the sums that make it may reach .*e\+4. here, beyond the 3.4e\+38 "),
        ({"q": 1e30, "do": 1e30}, {}, "scores err by .* in right float32 arithmetic here"),
        ({"q": 1e6, "do": 1e33}, {"scale": 1e-6}, r"dK and the sums that make it may reach .*e\+"),
    ],
    ids=["Q K^T", "q and dO x 1e30", "dS^T Q before its scale"],
)  # fmt: skip
def test_inputs_that_no_kernel_bears_are_refused(factors, options, words):
    case, saved = times(factors, **options)
    with pytest.raises(UsageFailure, match=words) as refused:
        probe(case, target_of(softmax), saved=saved)
    assert refused.value.way_out == "make --scale or the inputs smaller"


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "match"), (2.0, "mismatch")])
def test_do_times_1e30_is_judged(factor, verdict):
    case, saved = times({"do": 1e30})

    def backward(q, k, v, do, *, scale, causal):
        results = softmax(q, k, v, do, scale=scale, causal=causal)
        return {**results, "dQ": factor * results["dQ"]}

    assert probe(case, target_of(backward), saved=saved, why=False).verdict == verdict


CHANGES = {
    "none": lambda dv: dv,
    "negated": lambda dv: torch.where(dv.isinf(), -dv, dv),
    "nan": lambda dv: torch.where(dv.isinf(), torch.nan, dv),
    "everywhere": lambda dv: dv + torch.inf,
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_infinity_of_the_right_sign_is_right_where_float16_holds_no_such_number(name):
    """Eight query heads add up to a dV between 46,000 and 85,000; float16 ends at 65,504."""
    options = {
        "batch": 2, "heads": 8, "kv_heads": 1, "head_dim": 8, "seqlen": 20, "dtype": "float16",
    }  # fmt: skip
    values = draw(softmax_case(**options))
    do = (8000 + 2000 * values["do"].float()).half()
    values |= {"do": do, "v": values["v"] / 64, "q": values["q"] / 8}
    infinite = softmax(**values, scale=8**-0.5)["dV"].isinf()
    assert 0 < int(infinite.sum()) < infinite.numel()
    case = softmax_case(**options, inputs="real.pt", recover=False, runs=((),))

    def summed(q, k, v, do, *, scale):
        results = softmax(q, k, v, do, scale=scale)
        return {"dQ": results["dQ"], "dK": results["dK"], "dV": CHANGES[name](results["dV"])}

    report = probe(case, target_of(summed), saved=SavedInputs(values, {}, {}), why=False)
    verdict = "match" if name == "none" else "mismatch"
    assert {report.verdict, *(run.verdict for run in report.runs)} == {verdict}


def test_a_ds_beyond_float16_is_refused_since_kernels_round_it_on_the_way():
    values = draw(softmax_case(**SMALL, seqlen=20, dtype="float16"))
    values |= {name: (values[name].float() * 300).half() for name in ("do", "v")}
    case = softmax_case(**SMALL, seqlen=20, dtype="float16", inputs="real.pt")
    words = "dS and the sums that make it may reach .* beyond the 6.55e[+]04 of float16"
    with pytest.raises(UsageFailure, match=words):
        probe(case, target_of(softmax), saved=SavedInputs(values, {}, {}))
