"""The score holds: planted faults are found, placed and explained, right kernels pass, and nobody guesses."""

import pytest

from tests.planted.equivalents import EQUIVALENTS
from tests.planted.planting import TARGETS
from tests.planted.score import figures, lines_of, score
from tests.planted.scored import SCORED, TRIALS
from tests.planted.scoring import Judged, Prober
from tests.planted.uncovered import UNCOVERED

# One planted fault of each class, an equivalent edit of every twelve and an uncovered fault on every push: of each
# class one that is probed soon, of fewer rows than the score's, which halves it.
FIRST = [
    "flash-cuda/do_read_with_q_head_stride", "flash-cuda/last_stride_of_v_taken_for_1_in_dq",
    "flash/delta_of_the_key_head_in_dkdv", "flash/program_number_of_32_bits_in_dq", "flash/sink_ignored",
    "flash/causal_range_one_tile_short_in_dq", "flash/keys_beyond_the_end_read_in_dq",
    "flash/lse_of_dead_rows_not_guarded_in_dkdv", "flash-cuda/p_added_to_what_is_not_zeroed", "flash/scale_missing",
    "flash/first_head_of_a_group_alone", "flash-cuda/dk_summed_by_several_threads", "flash/lse_kept_in_float16",
    "lazy/dtau_summed_by_each_configuration_tried", "dropout/mask_missing_in_dv",
    "flash/dq_and_dk_returned_in_each_others_place",
]  # fmt: skip
OFTEN = [*FIRST, *(trial.title for trial in (*EQUIVALENTS[::12], UNCOVERED[9]))]


@pytest.mark.parametrize("name", OFTEN)
def test_a_trial_of_every_class_comes_to_what_its_record_says(name, tmp_path):
    judged = Judged(TRIALS[name], Prober(str(tmp_path), rows=20)(name))
    assert judged.right, "\n".join(lines_of([judged]))


@pytest.mark.nightly
def test_the_whole_score_holds(record_property):
    judged = score(list(TRIALS))
    for figure in figures(judged):
        record_property("figure", f"{figure.title}: {figure.count} of {figure.of}")
    assert all(figure.holds for figure in figures(judged)), "\n".join(lines_of(judged))


def test_there_are_as_many_as_ever():
    assert {TRIALS[name].fault_class for name in FIRST} == {one.fault_class for one in SCORED}
    assert (len(SCORED), len(EQUIVALENTS), len(UNCOVERED)) == (118, 23, 18)


def test_each_trial_has_a_name_a_program_and_causes_of_its_own_and_says_why_there_are_several():
    assert len(TRIALS) == len(SCORED) + len(EQUIVALENTS) + len(UNCOVERED)
    programs = {(one.plant(), str(one.options), one.of) for one in TRIALS.values()}
    assert len(programs) == len(TRIALS)
    originals = {path.read_text() for path, _, _ in TARGETS.values()}
    assert not originals & {program for program, _, _ in programs}
    assert [trial.title for trial in SCORED if (len(trial.causes) > 1) != bool(trial.why)] == []
    assert all("/" in cause for trial in SCORED for cause in trial.causes)
