import pytest

from gradprobe.model.documents import load
from tests.cli.command import SMALL, run

TARGETS = """
import torch

def old(q, k, v, do, *, scale):
    p = torch.softmax(scale * q @ k.mT, -1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    return {"P": p, "dQ": scale * ds @ k, "dK": scale * ds.mT @ q, "dV": p.mT @ do}

def otherwise(q, k, v, do, *, scale):
    found = old(q, k, v, do, scale=scale)
    return {**found, "dQ": (scale * q.new_tensor(1.0)) * (found["dQ"] / scale)}

def larger(q, k, v, do, *, scale):
    found = old(q, k, v, do, scale=scale)
    found["dK"][:, 1, 5:] *= 1.01
    return found

def new(q, k, v, do, *, scale):
    found = larger(q, k, v, do, scale=scale)
    found["P"][:, 1, 3, 2] = 0.75
    return found

def crashing(q, k, v, do, *, scale):
    raise ValueError("no such luck")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "kernels_of_mine.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def against(target, other, *more):
    words = ["check", f"kernels_of_mine.py:{target}", "--against", other, *SMALL.split(), *more]
    ran = run([*words, "--fix-budget", "0", "--runs", "contiguous"])
    return ran, " ".join(ran.out.split())


def test_a_wrong_rewrite_differs_first_where_it_is_wrong(folder):
    ran, told = against("new", "kernels_of_mine.py:old", "--json", "new.json")
    assert ran.code == 1
    found = load((folder / "new.json").read_text()).against
    assert found.report.verdict == "match"
    by_name = {one.name: one for one in found.differences}
    assert {name: (one.differing, one.beyond) for name, one in by_name.items()} == {
        "P": (1, 1), "dQ": (0, 0), "dK": (15 * 8, 15 * 8), "dV": (0, 0),
    }  # fmt: skip
    first = by_name["dK"].first
    assert (by_name["dK"].heads, first.row, first.head) == ((1,), 5, 1)
    assert by_name["P"].first.expected == pytest.approx(float(by_name["P"].other), rel=1e-5)
    for words in (
        "AGAINST kernels_of_mine.py:old (torch on cpu",
        "is right; they differ first in P (contiguous), batch 0, head 1, row 3, col 2: 0.75 here,",
    ):
        assert words in told
    assert run("show new.json").out == ran.out


def test_two_that_are_right_differ_nowhere_by_more_than_one_may_err_and_a_report_stands_for_one():
    ran, told = against("otherwise", "kernels_of_mine.py:old", "--json", "old.json")
    assert ran.code == 0
    assert (
        "is right; every difference is within what one of them may err; the largest is 0."
        in told
    )
    ran, told = against("larger", "old.json")
    assert (ran.code, "beside old.json: dK in contiguous: right -> wrong in head 1" in told) == (
        1, True,
    )  # fmt: skip
    assert (
        "option pattern: normal -> small" in against("old", "old.json", "--pattern", "small")[1]
    )


@pytest.mark.parametrize(
    ("other", "words", "code"),
    [
        ("kernels_of_mine.py:nothing", "--against kernels_of_mine.py:nothing: ", 2),
        ("kernels_of_mine.py:old", "this is the target itself, run in the same way", 2),
        ("compiled", "--against compiled: one process cannot do both", 2),
        ("kernels_of_mine.py:crashing", "no such luck", 3),
    ],
)
def test_what_cannot_be_set_beside_is_said(other, words, code):
    ran, _ = against("old", other)
    assert (ran.code, words in ran.err) == (code, True)
