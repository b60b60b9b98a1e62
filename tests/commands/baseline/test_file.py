import json
import math
import random
from dataclasses import replace

import pytest

from gradprobe.commands.baseline import FLOOR, Entry, failures, growth, load, refuse_other, save
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.failures import UsageFailure

STEADY = (0.1, 0.101, 0.099, 0.102, 0.098)
HERE = "triton-interpreter on cpu"


def entry(target="lazy", factor=1.0, **changes):
    """An entry of five draws whose dQ is wrong by so many times STEADY, and its worst element by four times that."""
    figures = {"rms": tuple(factor * each for each in STEADY)}
    figures["worst"] = tuple(4 * each for each in figures["rms"])
    errors = {layout: {"dQ": figures} for layout in ("contiguous", "distinct")}
    request = CheckRequest(target, None, None, {})
    return replace(Entry(request, tuple(range(5)), HERE, errors), **changes)


def test_what_is_saved_comes_back_and_is_the_same_in_whatever_order(tmp_path):
    words = {"shards": "my.py:cut[0,  1, 2]", "layout": ["do=expanded", "all=blhd"], "heads": 4}
    request = CheckRequest("flash", "softmax", "mine.py:reference", words)
    kept = (entry(request=request), entry("lazy", 2.0))
    one, two = str(tmp_path / "1.json"), str(tmp_path / "2.json")
    save(one, kept)
    save(two, kept[::-1])
    assert load(one) == load(two) == kept
    with pytest.raises(UsageFailure, match="cannot be written"):
        save(str(tmp_path / "no" / "folder.json"), ())


FIGURES = ("entries", 0, "errors", "distinct", "dQ", "rms")
CHANGES = [
    (("schema",), "gradprobe.baseline/2"), (("entries", 0, "options"), {"heads": "four"}),
    (("entries", 0, "seeds"), [0, 1]), (FIGURES, [0.1] * 4),
    (FIGURES, [0.1, 0.1, 0.1, 0.1, float("nan")]), (("entries", 0, "errors"), {"contiguous": 1}),
]  # fmt: skip


@pytest.mark.parametrize("change", ["", "{}", "[]", "null", "[" * 100_000, "\udcff", *CHANGES])
def test_a_file_that_holds_no_baseline_is_refused_by_name_with_a_way_out(change, tmp_path):
    file = tmp_path / "b.json"
    save(str(file), (entry(),))
    if not isinstance(change, str):
        (*steps, last), to = change
        place = document = json.loads(file.read_text())
        for step in steps:
            place = place[step]
        place[last] = to
        change = json.dumps(document)
    file.write_bytes(change.encode(errors="surrogateescape"))
    with pytest.raises(UsageFailure, match=f"--baseline {file}: ") as failure:
        load(str(file))
    assert failure.value.way_out == "gradprobe check TARGET --baseline FILE writes one"


LAWS = {
    "normal": lambda draw: draw.gauss(0, 0.3),
    "uniform": lambda draw: draw.random(),
    "exponential": lambda draw: draw.expovariate(1.0),
}


@pytest.mark.parametrize("law", LAWS)
def test_figures_of_one_law_are_never_called_grown(law):
    draw, pairs = random.Random(3), 5_000
    figures = [[math.exp(LAWS[law](draw)) for _ in range(5)] for _ in range(2 * pairs)]
    found = [growth(before, after) for before, after in zip(*[iter(figures)] * 2, strict=True)]
    assert all(factor <= noise for factor, noise in found)
    assert any(factor > noise**0.25 for factor, noise in found)


@pytest.mark.parametrize(
    ("before", "after", "is_grown"),
    [
        (STEADY, [1.3 * each for each in STEADY], True),
        ([0.05, 0.1, 0.2, 0.07, 0.15], [0.065, 0.13, 0.26, 0.091, 0.195], False),
        (STEADY, [0.1, 0.1, math.nan, 0.1, 0.1], True), (STEADY, [0.1, 0.1, math.inf, 0.1, 0.1], True),
        ([0.0] * 5, [FLOOR] * 5, False), ([0.0] * 5, [1e-3] * 5, True),
        # One rounding more, without any spread, is a factor of 1.118.
        ([0.1] * 5, [0.111] * 5, False), ([0.1] * 5, [0.113] * 5, True), ([0.1] * 5, [0.088] * 5, False),
    ],
)  # fmt: skip
def test_growth_is_told_beyond_the_spread_of_the_draws_and_one_rounding(before, after, is_grown):
    factor, noise = growth(before, after)
    assert (not factor <= noise) == is_grown


def test_a_largest_error_alone_that_grew_fails():
    after = entry()
    after.errors["contiguous"]["dQ"] |= {"worst": tuple(8 * each for each in STEADY)}
    (line, _) = failures(entry(), after)  # both layouts hold the same figures here
    assert line.startswith("GREW dQ contiguous worst error 2x, noise up to ")


def test_what_a_sum_in_fewer_bits_hides_fails_by_itself():
    (line,) = failures(entry(), entry(factor=0.1, coarser=("dK",)))
    assert line.startswith("COARSER dK: ")
    assert failures(entry(coarser=("dK",)), entry(coarser=("dK",))) == []


OTHERS = [
    (
        "triton on cuda",
        "float32",
        f"it was saved by {HERE}, and triton on cuda has other errors",
    ),
    (HERE, "float16", "its case had dtype float32, and has float16 now"),
]


@pytest.mark.parametrize(("ran", "dtype", "words"), OTHERS)
def test_errors_of_another_backend_or_case_are_refused(ran, dtype, words):
    with pytest.raises(UsageFailure, match=words):
        refuse_other(entry(case={"dtype": "float32"}), ran, {"dtype": dtype, "causal": True})
