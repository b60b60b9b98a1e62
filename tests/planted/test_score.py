"""The score holds: planted faults are found, placed and explained, right kernels pass, and nobody guesses."""

from collections import Counter

import pytest

from gradprobe.model.report import Diagnosis
from tests.planted.equivalents import EQUIVALENTS
from tests.planted.figures import Figure, figures
from tests.planted.lazy_alone import LAZY_ALONE
from tests.planted.score import main, score
from tests.planted.score_text import lines_of
from tests.planted.scored import ON_A_GPU_ALONE, SCORED, SEEN
from tests.planted.scoring import DIAGNOSES, TRIALS, Judged, Outcome, Prober
from tests.planted.trials import TARGETS
from tests.planted.uncovered import UNCOVERED

# One planted fault of each class, an equivalent edit of every twelve and an uncovered fault on every push: of each
# class in the target that is probed soonest, of fewer rows than the score's, which halves it.
SOONEST = (
    "dropout",
    "flash-cuda",
    "flash",
    "flash-backward",
    "flash-black-box",
    "lazy",
    "lazy-backward",
    "lazy-cuda",
)
FIRST = {
    trial.fault_class: trial.name
    for trial in sorted(reversed(SCORED), key=lambda trial: -SOONEST.index(trial.changed.of))
}
OFTEN = [
    *FIRST.values(),
    *(trial.name for trial in EQUIVALENTS[::12]),
    *(trial.name for trial in UNCOVERED[15:16]),
]

needs_causes = pytest.mark.skipif(not DIAGNOSES, reason="reports do not say why")


def missed(judged):
    return [figure for figure in figures(judged) if not figure.holds]


@pytest.mark.parametrize("name", OFTEN)
def test_a_trial_of_every_class_comes_to_what_its_record_says(name, tmp_path):
    judged = Judged(TRIALS[name], Prober(str(tmp_path), rows=20)(name))
    assert judged.right, "\n".join(lines_of([judged]))


@pytest.mark.nightly
def test_the_whole_score_holds(record_property):
    judged = score(list(TRIALS))
    for figure in figures(judged):
        record_property("figure", f"{figure.title}: {figure.count} of {figure.of}")
    assert missed(judged) == [], "\n".join(lines_of(judged))


def test_the_planted_faults_are_at_least_84_in_the_proportions_of_the_field():
    of_the_field = [trial for trial in SCORED if trial not in LAZY_ALONE]
    counts = Counter(trial.fault_class for trial in of_the_field)
    assert len(of_the_field) >= 84
    assert counts.keys() == SEEN.keys() - ON_A_GPU_ALONE
    field = sum(SEEN[name] for name in counts)
    for name, count in counts.items():
        assert abs(count / len(of_the_field) - SEEN[name] / field) < 0.025, name


def test_there_are_at_least_14_equivalent_edits_and_30_uncovered_faults_of_three_kernels():
    assert len(EQUIVALENTS) >= 14
    assert len(UNCOVERED) == 30
    for trials in (SCORED, EQUIVALENTS, UNCOVERED):
        assert {trial.changed.of for trial in trials} >= {"lazy", "flash", "flash-cuda"}


def test_each_trial_has_a_name_and_a_program_of_its_own():
    assert len(TRIALS) == len(SCORED) + len(EQUIVALENTS) + len(UNCOVERED)
    programs = {
        (trial.changed.plant(), str(trial.changed.options), trial.changed.of)
        for trial in TRIALS.values()
    }
    assert len(programs) == len(TRIALS)
    originals = {path.read_text() for path, _, _ in TARGETS.values()}
    assert not originals & {trial.changed.plant() for trial in TRIALS.values()}


def test_where_several_causes_are_right_the_record_says_why():
    assert [trial.name for trial in SCORED if (len(trial.causes) > 1) != bool(trial.why)] == []


def test_every_cause_is_a_class_s_own_words():
    assert [
        trial.name for trial in SCORED if not all("/" in cause for cause in trial.causes)
    ] == []


def judged(name, **came):
    return Judged(TRIALS[name], Outcome(name, **came))


def diagnosed(fault, explained):
    return Diagnosis(fault, "S1", "dO is read with q's head stride", explained)


STRIDE = "lazy/do_read_with_q_head_stride"


def test_a_fault_in_the_wrong_head_is_found_and_not_placed():
    right = judged(STRIDE, verdict="mismatch", first="dP", batch=0, head=1)
    wrong = judged(STRIDE, verdict="mismatch", first="dP", batch=0, head=0)
    assert (right.found, right.placed) == (True, True)
    assert (wrong.found, wrong.placed) == (True, False)
    assert not judged(STRIDE, verdict="match").found


def test_a_race_whose_numbers_are_right_is_placed_by_the_array_that_is_raced_for():
    name = "flash-cuda/dk_summed_by_several_threads"
    assert judged(name, verdict="mismatch", memory=frozenset({"dk"})).placed
    assert not judged(name, verdict="mismatch", memory=frozenset({"dv"})).placed


def test_a_cause_counts_where_it_comes_first_and_explains_nine_tenths():
    def named(*diagnoses):
        return judged(
            STRIDE, verdict="mismatch", first="dP", batch=0, head=1, diagnoses=diagnoses
        ).named

    assert named(diagnosed("stride/do-head", 1.0))
    assert named(diagnosed("stride/do-head", 0.9), diagnosed("layout/do", 0.9))
    assert not named(diagnosed("stride/do-head", 0.89))
    assert not named(diagnosed("layout/do", 1.0), diagnosed("stride/do-head", 1.0))
    assert not named()


def test_an_uncovered_fault_that_is_given_a_cause_and_an_edit_that_is_flagged_are_missed():
    uncovered, equivalent = UNCOVERED[0].name, EQUIVALENTS[0].name
    assert judged(uncovered, verdict="mismatch").right
    assert judged(uncovered, verdict="mismatch", diagnoses=(diagnosed("factor/dS", 0.6),)).right
    assert not judged(
        uncovered, verdict="mismatch", diagnoses=(diagnosed("factor/dS", 0.9),)
    ).right
    assert not judged(uncovered, verdict="match").right
    assert judged(equivalent, verdict="match").right
    assert not judged(equivalent, verdict="mismatch", first="dQ").right


def test_a_figure_holds_at_its_threshold_and_not_below():
    assert Figure("cause named first", 19, 20, 0.95).holds
    assert not Figure("cause named first", 18, 20, 0.95).holds
    assert Figure("equivalent edits flagged", 0, 14, most=0.0).holds
    assert not Figure("equivalent edits flagged", 1, 14, most=0.0).holds
    assert Figure("no hypothesis fits", 28, 30, 28 / 30).holds
    assert not Figure("no hypothesis fits", 27, 30, 28 / 30).holds


def test_a_miss_is_told_with_what_was_said_instead():
    came = judged(STRIDE, verdict="mismatch", first="dV", batch=0, head=1)
    text = "\n".join(lines_of([came]))
    assert "✗ first wrong intermediate and head right    0 of   1" in text
    assert "1 missed" in text
    assert "expected  dP batch 0 head 1; stride/do-head" in text
    assert "came      mismatch; dV batch 0 head 1" in text


@needs_causes
def test_a_miss_of_the_cause_tells_it_and_its_runner_up():
    diagnoses = (diagnosed("layout/do", 1.0), diagnosed("stride/do-head", 0.5))
    came = judged(STRIDE, verdict="mismatch", first="dP", batch=0, head=1, diagnoses=diagnoses)
    text = "\n".join(lines_of([came]))
    assert "said      layout/do 100 %: dO is read with q's head stride" in text
    assert "runner-up stride/do-head 50 %: dO is read with q's head stride" in text


def test_the_command_lists_names_with_their_causes_and_knows_no_other(capsys):
    assert main(["--list", "--only", "lazy/do_read_with_q_head_stride"]) == 0
    assert (
        "lazy/do_read_with_q_head_stride  S1  stride/do-head"
        in capsys.readouterr().out.splitlines()
    )
    assert main(["--only", "nothing_of_this_name"]) == 2
