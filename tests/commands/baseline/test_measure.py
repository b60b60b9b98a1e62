from itertools import permutations
from pathlib import Path

import pytest

from gradprobe.commands.baseline import Entry, failures, growths, measure
from gradprobe.inputs.history import CheckRequest
from gradprobe.pipeline.run_check import run_check
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("without_causes")

COARSE = Path(__file__).parent / "coarse.py"
SMALL = {"batch": 1, "heads": 2, "seqlen": 48, "head_dim": 16}


def measured(function, seeds=range(5), **options):
    target = function if function == "sdpa-math" else f"{COARSE}:{function}"
    return measure(CheckRequest(target, None, None, options), seeds)


@pytest.fixture(scope="module")
def right():
    return {dtype: measured("right", dtype=dtype) for dtype in ("float32", "float16")}


ROUNDED = [
    ("float16", "ds_twice", {"dQ", "dK"}),
    ("float32", "k_without_3_bits", {"O", "dQ", "dK", "dV"}),
]


@pytest.mark.parametrize(("dtype", "function", "grown"), ROUNDED)
def test_one_rounding_more_is_found_where_it_is_and_nowhere_else(dtype, function, grown, right):
    after = measured(function, dtype=dtype)
    assert isinstance(after, Entry), "all of it is within budget"
    found = growths(right[dtype], after)
    assert {row["intermediate"] for row in found if row["grown"]} == grown


def test_a_sum_in_fewer_bits_is_told_where_its_wider_budget_hides_it():
    case = {**SMALL, "heads": 1, "seqlen": 256, "dtype": "bfloat16", "runs": ["contiguous"]}
    before, after = (measured(name, range(2), **case) for name in ("right", "dk_in_16_bits"))
    assert [line.split(":")[0] for line in failures(before, after)] == ["COARSER dK"]


def test_what_leaves_its_budget_comes_back_as_the_report_of_the_first_draw_that_does():
    report = measured("k_as_in_tf32", range(3, 8), **SMALL)
    assert (report.verdict, report.case.seed) == ("mismatch", 3)
    assert "--seed 3" in report.reproduce


@sampled(
    "options", [{"dtype": "float16", "runs": ["contiguous"]}, {"pattern": "lowrank", "bias": True}], push=[]
)  # fmt: skip
def test_no_draws_of_a_right_kernel_are_an_alarm_beside_other_draws(options):
    firsts = range(0, 40, 5)
    sets = [measured("sdpa-math", range(at, at + 5), **SMALL, **options) for at in firsts]
    assert not any(failures(before, after) for before, after in permutations(sets, 2))


def test_the_rms_is_that_of_the_elements_themselves():
    """Beside the budget that the comparison gives out, which is that of dQ, dK and dV."""
    entry = measured("right", range(7, 11), **SMALL)
    options = {**SMALL, "seed": 7, "recover": False}
    report = run_check(CheckRequest(f"{COARSE}:right", None, None, options), "")
    _, found = report.measured[0]
    for name in ("dQ", "dK", "dV"):
        expected, bounds = found.comparison.expected[name], found.comparison.bounds[name]
        error = (found.trace.values[name].double() - expected).abs()
        rms = ((error / (bounds + 2.0**-24 * expected.abs())) ** 2).mean().sqrt()
        assert entry.errors["contiguous"][name]["rms"][0] == pytest.approx(rms.item(), rel=0.05)
