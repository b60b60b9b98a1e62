"""The arithmetic of compiled kernels is read: right ones are within their own budget, and an error of 1e-4 is found."""

import functools
import inspect
import random

import pytest
import torch

from gradprobe.kernels.triton.flash import flash_intermediates
from gradprobe.kernels.triton.lazy import lazy_intermediates
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.numerics.test_budget import PATTERNS
from tests.probe import probe

pytestmark = pytest.mark.gpu
KERNELS = {"lazy": (lazy_intermediates, lazy_case), "flash": (flash_intermediates, softmax_case)}
CHUNKS, DRAWS = 25, 20
ORDINARY = [
    pattern for pattern in PATTERNS if pattern != "dyadic"
]  # which asks for scales of its own


def target(kernel, dots, change=lambda results: results):
    """A built-in kernel as a stranger's: nothing tells how its dots multiply but what they are compiled to."""
    function, _ = KERNELS[kernel]

    @functools.wraps(function)
    def backward(**arguments):
        return change(function(**arguments, dots=dots))

    signature = inspect.signature(function)
    kept = [parameter for name, parameter in signature.parameters.items() if name != "dots"]
    backward.__signature__ = signature.replace(parameters=kept)
    return find_target(backward)


def drawn(kernel, draws):
    heads = draws.choice([2, 4])
    options = {
        "batch": draws.choice([1, 2]), "heads": heads, "seqlen": draws.randint(64, 700),
        "head_dim": draws.choice([16, 64]), "pattern": draws.choice(ORDINARY), "seed": draws.randrange(2**31),
        "scale": draws.choice([None, None, 0.05]), "layouts": (("all", draws.choice(["contiguous", "distinct"])),),
    }  # fmt: skip
    own = {"kv_heads": draws.choice([heads, heads // 2]), "causal": draws.choice([False, True])}
    window = {"bias_window": draws.randint(1, 300)}
    return KERNELS[kernel][1](**options, **(own if kernel == "flash" else window))


def worst(report):
    (run,) = report.runs
    return max(finding.max_ratio for finding in run.measured.comparison.findings.values())


@pytest.mark.parametrize("dots", ["ieee", "tf32"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_right_kernels_use_a_fiftieth_to_all_of_their_own_budget(chunk, dots, record_property):
    draws, ratios = random.Random(chunk), []
    for number in range(DRAWS if dots == "ieee" else DRAWS // 5):
        kernel = ("lazy", "flash")[number % 2]
        case = drawn(kernel, draws)
        report = probe(case, target(kernel, dots), why=False)
        assert report.case.dots == dots
        assert report.verdict == "match", (case, worst(report))
        ratios.append(worst(report))
    record_property("ratios", [round(ratio, 3) for ratio in sorted(ratios)])
    assert min(ratios) >= 0.02
    assert max(ratios) <= 1


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seqlen", [72, 700])
def test_an_error_of_1e_4_in_one_head_of_dq_is_found_in_ieee_kernels(kernel, seqlen):
    def change(results):
        results["dQ"][0, 1] *= 1 + 1e-4
        return results

    case = KERNELS[kernel][1](seqlen=seqlen, head_dim=64)
    report = probe(case, target(kernel, "ieee", change), why=False)
    first = report.failing[1].first
    assert (first.intermediate, first.batch, first.head) == ("dQ", 0, 1)
    read = "dots are judged as ieee, as was read: ieee in"
    assert any(note.startswith(read) for note in report.notes)


@pytest.mark.parametrize("kernel", KERNELS)
def test_dots_that_are_coarser_than_declared_are_told_with_their_lines(kernel):
    case = KERNELS[kernel][1](seqlen=200, head_dim=64, dots="ieee")
    report = probe(case, target(kernel, "tf32"))
    assert report.verdict == "mismatch"
    assert report.diagnoses[0].fault == "precision/tf32"
    assert report.diagnoses[0].where
    assert all("tl.dot(" in where.code for where in report.diagnoses[0].where)


@pytest.mark.parametrize(
    ("name", "is_allowed", "way"),
    [
        ("sdpa-math", False, "ieee"),
        ("sdpa-math", True, "tf32"),
        ("sdpa-efficient", False, "tf32x3"),
    ],
)
def test_torch_is_read_from_its_settings_and_from_its_own_nodes(name, is_allowed, way):
    settings = torch.backends.cuda.matmul
    was = settings.allow_tf32
    settings.allow_tf32 = is_allowed  # monkeypatch cannot undo it: it takes no delattr
    try:
        report = probe(softmax_case(seqlen=300, head_dim=64), find_target(name), why=False)
    finally:
        settings.allow_tf32 = was
    assert report.case.dots == way
    assert report.verdict == "match"
