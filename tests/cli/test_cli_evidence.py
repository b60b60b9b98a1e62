"""`--evidence` writes whole heads beside the report, and a page made of both later is the page of the run."""

import json

import numpy as np
import pytest

from tests.cli.command import SMALL, run

pytestmark = pytest.mark.usefixtures("without_causes")
WORDS = f"check soft.py:doubled_dq {SMALL} --runs contiguous --evidence heads.npz --json r.json --html r.html"


def test_a_later_page_of_report_and_file_is_the_runs_own(folder):
    ran = run(WORDS)
    assert ran.code == 1
    assert "evidence: heads.npz holds" in ran.out
    first = json.loads((folder / "r.json").read_text())["first_mismatch"]
    with np.load("heads.npz", allow_pickle=False) as kept:
        array = kept["dQ.{batch}.{head}.actual".format(**first)]
    assert array.shape == (20, 8)
    assert float(array[first["row"], first["col"]]) == first["actual"]
    shown = run("show r.json --evidence heads.npz --html again.html")
    assert shown.code == 1
    assert (folder / "again.html").read_bytes() == (folder / "r.html").read_bytes()
    assert b'class="values"' in (folder / "r.html").read_bytes()


def test_another_checks_file_is_refused(folder):
    run(WORDS)
    np.savez("other.npz", about=np.array("{}"))
    for words, why in (
        ("--evidence other.npz --html p.html", "not what the check of this report wrote"),
        ("--evidence absent.npz --html p.html", "cannot be read, No such file"),
        ("--evidence heads.npz", "the page shows it, and none is written"),
    ):
        refused = run(f"show r.json {words}")
        assert refused.code == 2
        assert why in refused.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--evidence heads.json", "must end in .npz"),
        ("--evidence absent/heads.npz", "cannot be written"),
        ("--evidence heads.npz --json heads.npz", "both write to heads.npz"),
        ("--evidence heads.npz --battery quick", "takes one plain check"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_runs(words, why):
    refused = run(f"check soft.py:doubled_dq {SMALL} {words}")
    assert refused.code == 2
    assert why in refused.err
