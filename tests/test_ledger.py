"""The ledger: what is left out where, what that loses, and a journal from which it goes on."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(
    not BENCHMARKS.is_dir(), reason="a checkout alone has the benchmarks"
)
ALL = {"found": True, "placed": True, "named": True, "line": True}


@pytest.fixture(scope="module")
def book():
    before, loaded = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    import ledger

    yield ledger
    sys.path[:] = before
    for name in {"ledger", "mechanisms", "strangers"} - loaded:
        sys.modules.pop(name, None)


@pytest.fixture
def journal(book, tmp_path):
    journal = book.Journal(tmp_path / "journal.jsonl")
    journal.add(book.Run("score/a", "", ALL, 10.0, {"lint": 0.1, "dataflow": 3.0}, ["lint"]))
    journal.add(book.Run("score/b", "", {**ALL, "named": False}, 10.0, {"dataflow": 3.0}))
    journal.add(book.Run("score/a", "lint", {**ALL, "line": False}, 9.0))
    journal.add(book.Run("score/a", "dataflow", {**ALL, "placed": False}, 7.0))
    journal.add(book.Run("score/b", "dataflow", ALL, 7.0))
    return journal


def test_a_mechanism_is_left_out_where_it_spoke_or_took_long(book, journal):
    first, second = journal.runs(["score/a", "score/b"], "")
    names = "lint", "dataflow", "coincidence"
    assert list(map(first.concerns, names)) == [True, True, False]
    assert list(map(second.concerns, names[:2])) == [False, True]


def test_what_only_it_gives_counts_and_what_it_spoils_is_taken_off(book, journal):
    rows = {row.of.name: row for row in book.rows_of(journal, ["score/a", "score/b"])}
    assert (rows["lint"].spoke, rows["lint"].lost["line"]) == (1, 1)
    assert rows["lint"].worth == 100 / rows["lint"].of.lines
    flow = rows["dataflow"]
    assert (flow.spoke, flow.cases, flow.worth, flow.seconds) == (0, 2, 0.0, 6.0)
    assert (flow.lost["placed"], flow.gained["named"]) == (1, 1)


def test_it_goes_on_from_its_journal(book, journal, tmp_path):
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"case": "score/b", "wi')
    again = book.Journal(tmp_path / "journal.jsonl")
    again.add(book.Run("score/b", "coincidence"))
    again = book.Journal(tmp_path / "journal.jsonl")
    assert ("score/a", "lint") in again
    assert ("score/b", "coincidence") in again
    assert ("score/b", "lint") not in again
    cases = ["score/a", "score/b"]
    assert book.ledger(again, cases, ["score"]) == book.ledger(journal, cases, ["score"])


def test_one_case_of_the_score_comes_to_its_figures(book, tmp_path):
    came = book.figures_of(tmp_path, "score/flash/do_read_with_all_strides_of_o")
    assert came["figures"] == ALL
    assert came["seconds"] > 0
