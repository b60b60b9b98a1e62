"""An edit is shown as the fix where everything matches with it, fresh values included, and nowhere else."""

from dataclasses import replace
from pathlib import Path

import pytest

from gradprobe.diagnosis.edits.candidates_search import Search, SearchResult
from gradprobe.diagnosis.edits.judge import EditResult, JudgedEdit
from gradprobe.diagnosis.edits.tried import _placed
from gradprobe.model.allowance import NOTHING, Allowance, Client
from gradprobe.model.report import CauseLine, Diagnosis, passing_edit, patched
from gradprobe.pipeline.reported import report_of
from gradprobe.probing.experiment import experiment_of
from gradprobe.probing.runs import records_of
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.rewrites.candidate import Candidate
from gradprobe.source.syntax import Edit
from gradprobe.targets.find import find_target
from gradprobe.targets.naming import forget, holding
from tests.cases import softmax_case
from tests.probe import probe
from tests.sampling import sampled

EXAMPLE = (Path(__file__).resolve().parents[2] / "examples" / "delta.py").read_text()
RIGHT = EXAMPLE.replace(
    "do_ptr += b * stride_dob + h * stride_oh", "do_ptr += b * stride_dob + h * stride_doh"
)
ALLOWED = Allowance(40)


def experiment_on(folder, text):
    (folder / "delta.py").write_text(text)
    case = softmax_case(batch=1, heads=2, seqlen=20, head_dim=8)
    return experiment_of(case, find_target(f"{folder}/delta.py:delta", "softmax"))


def report_on(folder, text, allowed=ALLOWED):
    begun = experiment_on(folder, text)
    return report_of(probe(begun.case, begun.target, client=Client(budget=lambda: allowed)))


def test_the_edit_is_shown_with_what_matches_with_it_and_the_cause_is_certain(tmp_path):
    report = report_on(tmp_path, EXAMPLE)
    (cause, *_) = report.causes
    assert cause.fault == "stride/do-head"
    assert cause.is_certain
    assert patched(EXAMPLE, cause.edit.diff) == RIGHT
    assert cause.edit.tried == 1  # the stride that the cause wants ends the search
    layouts = ", ".join(run.layout for run in report.runs if "," not in run.layout)
    words = f"with it all matches: {layouts} and a fresh draw (seed 1, 25 rows)"
    assert cause.edit.words == words
    assert (tmp_path / "delta.py").read_text() == EXAMPLE


def test_nothing_is_tried_without_a_budget_and_nothing_where_all_matches(tmp_path):
    assert all(one.edit is None for one in report_on(tmp_path, EXAMPLE, NOTHING).diagnoses)
    assert report_on(tmp_path, RIGHT).diagnoses == ()


def strides(tensor):
    return ", ".join(f"{tensor}.stride({axis})" for axis in range(4))


def test_the_edit_that_a_cause_prints_is_made_in_all_its_places_at_once_and_tried_first(
    tmp_path,
):
    """One edit is allowed. The cause prints four: each stride of o that is passed for one of dO."""
    right = RIGHT.replace("*do.stride()", strides("do"))
    report = report_on(tmp_path, right.replace(strides("do"), strides("o")), Allowance(1))
    assert (
        patched(right.replace(strides("do"), strides("o")), passing_edit(report).diff) == right
    )


NAMELESS = RIGHT.replace("stride_", "s").replace("do_ptr", "g")
LISTED = NAMELESS.replace("*do.stride()", strides("do")).replace("*o.stride()", strides("o"))


@pytest.mark.parametrize(("right", "old", "new"), [
    pytest.param(NAMELESS, "h * sdoh", "h * soh", marks=pytest.mark.nightly),
    (LISTED, " do.stride(1)", " o.stride(1)"),
    pytest.param(RIGHT, "(o, do, found", "(o, o, found", marks=pytest.mark.nightly),
])  # fmt: skip
def test_what_a_run_passes_shows_what_names_do_not(tmp_path, right, old, new):
    report = report_on(tmp_path, right.replace(old, new), Allowance(1))
    assert patched(right.replace(old, new), passing_edit(report).diff) == right


def test_a_search_that_the_last_resort_stops_says_so(tmp_path):
    report = report_on(tmp_path, EXAMPLE, Allowance(40, 0.0))
    assert all(one.edit is None for one in report.diagnoses)
    assert report.known[-1] == "stopped after 0 s, when 0 edits had been tried"


def test_what_no_hypothesis_names_is_a_cause_once_an_edit_is_found(tmp_path):
    wrong = RIGHT.replace("tl.sum(o * do, axis=1)", "tl.sum(o * do, axis=1) - 0.125 * h")
    report = report_on(tmp_path, wrong)
    assert patched(wrong, passing_edit(report).diff) == RIGHT
    assert report.causes[0].is_certain


# Other lengths than twenties are refused, and P is right for one of them alone.
OF_TWENTIES = """    assert n_ctx % 20 == 0
    p = torch.softmax(q @ k.mT * head_dim**-0.5, -1) * (n_ctx // 20)
    return {"delta": found, "P": p}
"""


@pytest.mark.nightly
def test_a_length_in_which_the_target_is_wrong_anyhow_is_a_doubt_of_an_edit_alone(tmp_path):
    text = EXAMPLE.replace('    return {"delta": found}\n', OF_TWENTIES)
    edit = passing_edit(report_on(tmp_path, text))
    assert edit.words.endswith("and a fresh draw (seed 1, 20 rows)")
    assert edit.doubts == ("40 rows",)
    assert "h * stride_doh" in edit.diff


@sampled("bound, matches", [("20", False), ("n_ctx", True), ("n_ctx + 1", False)], push=2)
def test_an_edit_that_matches_this_case_alone_or_does_harm_is_not_shown(
    tmp_path, bound, matches
):
    """20 rows of 20 are right, and the draw with 25 rows tells that from the length itself; one more is outside."""
    text = RIGHT.replace("mask=offs_m < n_ctx)", "mask=offs_m < 19)")
    begun = experiment_on(tmp_path, text)
    at = text.index("19)")
    edit = Candidate(KernelFile(f"{tmp_path}/delta.py", text), (Edit(at, at + 2, bound),), 0.0)
    search = Search(begun, [record.run for record in records_of(begun)], tmp_path, ALLOWED)
    whole = search._first_wrong(edit) == (None, None)
    assert (whole and search._titles(edit) != ([], [])) is matches


def passing(edit, **more):
    return JudgedEdit(edit, ["contiguous", "distinct"], ["causal"], **more)


def told_of(*passed):
    (cause,) = _placed((), SearchResult(list(passed)), 0.0)
    return cause.edit


def candidate(*edits):
    text = "@jit\ndef f(a, b, c):\n    x = a\n    y = b\n"
    spans = [(text.index(old), len(old), new) for old, new in edits]
    made = tuple(Edit(at, at + size, new) for at, size, new in spans)
    return Candidate(KernelFile("f.py", text), made, 0.0)


def test_the_edit_that_changes_and_adds_the_least_is_told():
    longer, same = candidate(("x = a", "x = a * c")), candidate(("x = a", "x = b"))
    more = candidate(("x = a", "x = b"), ("y = b", "y = c"))
    assert told_of(*map(passing, (longer, more, same))).diff == same.diff


def test_what_is_certain_is_preferred_and_what_is_doubted_or_not_run_is_told():
    small = candidate(("x = a", "x = b"))
    large = candidate(("x = a", "x = b * c"), ("y = b", "y = b * c"))
    doubted = passing(small, doubts=["13 rows"], not_run=["line 3"])
    certain = passing(large)
    told, words = told_of(doubted), ("not run: line 3", "wrong with it and without it: 13 rows")
    assert (told.is_certain, told.reservations) == (False, words)
    assert told_of(doubted, certain).diff == large.diff


@pytest.mark.parametrize(
    ("wrong", "is_better"),
    [({"dQ": 0, "dK": 9}, True), ({"dQ": 9, "dK": 9}, False), ({"dQ": 0, "dK": 0, "dV": 1}, False),
     ({"dQ": 2, "dK": 2}, True), ({"dQ": 0, "dK": 19}, True)],
)  # fmt: skip
def test_an_edit_is_closer_where_a_result_comes_right_and_none_goes_wrong(wrong, is_better):
    before = EditResult({"dQ": 9, "dK": 9, "dV": 0})
    assert replace(before, wrong=wrong).is_better_than(before) is is_better
    assert not replace(before, wrong=wrong, harm=1).is_better_than(before)
    assert not replace(before, wrong={}, failure="raised").is_better_than(before)


@pytest.mark.parametrize(
    ("wrong", "harm", "words"),
    [(2, 2, "fewer elements are wrong"), (3, 0, "memory comes to less harm with it")],
)
def test_what_came_closest_is_told_with_what_is_better(wrong, harm, words):
    before, result = EditResult({"O": 3}, 2), EditResult({"O": wrong}, harm)
    found = SearchResult(closest=(candidate(("a\n", "b\n")), result, before))
    (cause,) = _placed((Diagnosis("value/O", "A", "it is wrong", 1.0),), found, 0.0)
    assert cause.edit.words == f"{words}; O still wrong"


def test_what_may_not_be_imported_twice_stays_beside_what_holds_kernels(tmp_path, monkeypatch):
    package = tmp_path / "registered_once"
    package.mkdir()
    once = "import os\nassert not hasattr(os, __name__)\nsetattr(os, __name__, 0)\n"
    table = "import sys\neverything = sys.modules\n"
    texts = {"__init__": "", "operators": once, "table": table, "kernels": EXAMPLE}
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    adapter = tmp_path / "adapter.py"
    adapter.write_text(
        "import registered_once.operators\nfrom registered_once import table\n"
        "from registered_once.kernels import delta\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    find_target(f"{adapter}:delta", "softmax")
    held = holding(str(package / "kernels.py"))
    assert held == ["gradprobe_target_adapter", "registered_once.kernels"]


def test_what_is_forgotten_is_imported_anew_from_its_package_and_names_its_operators_again(
    tmp_path, monkeypatch
):
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "__init__.py").write_text("from . import part\n")
    operator = 'library = Library("packed", "DEF")\nlibrary.define("f(Tensor x) -> Tensor")\n'
    part = tmp_path / "packed" / "part.py"
    part.write_text(f"from torch.library import Library\n{operator}")
    monkeypatch.syspath_prepend(tmp_path)
    from packed import part as first

    forget(["packed.part"])
    from packed import part as second

    assert second is not first
    forget(["packed", "packed.part"])


def test_the_cause_whose_line_the_edit_changes_comes_first():
    where = (CauseLine("f.py", 3, "x = a"),)
    race = Diagnosis("race/dQ", "RACE", "it is written twice", 1.0)
    grid = Diagnosis("grid/f", "M2", "too few programs", 1.0, where=where, also=True)
    found = SearchResult([passing(candidate(("a\n", "b\n")))])
    first, second = _placed((race, grid), found, 0.0)
    assert (first.fault, first.also, first.edit.matches) == ("grid/f", False, True)
    assert (second.fault, second.also, second.edit) == ("race/dQ", True, None)
