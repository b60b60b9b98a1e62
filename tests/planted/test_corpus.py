"""Every record of a planted fault gets the verdict, the place, the line and the edit that it says, and nothing else."""

import ast
from itertools import islice

import pytest

from gradprobe.commands.suite.plan import TargetSignature
from gradprobe.diagnosis import smaller
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.allowance import Allowance, Client
from gradprobe.model.case import Case
from gradprobe.pipeline.resolve import resolve_problem
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.rewrites.candidate import Fault
from gradprobe.source.rewrites.candidates import candidates_of
from gradprobe.targets.find import find_target
from tests.commands.suite.plans import ended
from tests.planted.battery_faults import HIDDEN
from tests.planted.cuda_faults import CUDA_FAULTS, LAID
from tests.planted.flash_faults import EXPORTED, INSIDE
from tests.planted.lazy_faults import FAULTS
from tests.planted.planting import TARGETS, assert_as_recorded
from tests.planted.strange_faults import STRANGE_FAULTS, mended
from tests.probe import probe
from tests.sampling import sampled


def title(fault):
    return fault.title


def often(faults, words):
    return [fault for fault in faults if fault.name in words.split()]


# On every push the score tries one of each class.
@sampled("fault", FAULTS, push=[], ids=title)
def test_a_fault_in_lazy_is_found_and_placed_with_every_status(fault, tmp_path):
    assert_as_recorded(fault, fault.probe(tmp_path, sizes={}, why=False))


# On every push an address, a formula and all exposed; the others at night, and by the score.
OFTEN = [*often(INSIDE, "delta_dropped_in_dkdv"), EXPORTED[0]]


@sampled("fault", (*INSIDE, *EXPORTED), push=OFTEN, ids=title)
def test_a_fault_in_flash_is_placed_of_a_black_box_unwatched(
    fault, tmp_path, monkeypatch, on_push
):
    if fault in INSIDE:
        monkeypatch.setattr(smaller, "INTERPRETED", "nowhere")
    # At night 36 rows and keys: a full and a partial tile along both axes.
    report = fault.probe(tmp_path, rows=20 if on_push else 36, why=False)
    assert_as_recorded(fault, report)
    inside = report.failing[0].inside
    said = "" if inside is None else "\n".join(inside.sentences)
    assert all(words in said for words in fault.says)
    assert bool(said) == bool(fault.says)


# On every push one of each kind of finding about memory; of wrong numbers the score tries one of each class.
OF_MEMORY = often(CUDA_FAULTS, "lazy_barrier_after_the_tile_missing shared_memory_out_of_bounds")


@sampled("fault", CUDA_FAULTS, push=OF_MEMORY, ids=title)
def test_a_fault_in_cuda_is_placed_and_what_it_does_to_memory_told_by_lines(fault, tmp_path):
    report = fault.probe(tmp_path, sizes=LAID, why=False)
    assert report.verdict == "mismatch"
    run, measured = report.failing
    if fault.right_on_cpu:
        assert measured.matches
        assert {stray.tensor for stray in run.memory} == {fault.array}
    else:
        assert (measured.first.intermediate, measured.first.head) == (fault.first, fault.head)
        assert fault.row in (None, measured.first.row)
    memory, kind = report.runs[0].memory, (fault.memory, fault.array)
    said = [stray.sentence for stray in memory if (stray.kind, stray.tensor) == kind]
    assert bool(memory) == bool(said) == bool(fault.memory)
    for code in fault.code:
        assert any(f"`{code}`" in sentence for sentence in said), said


# Each takes some ten seconds; the score tries one on every push.
@sampled("fault", HIDDEN, push=[], ids=title)
def test_the_default_check_passes_and_the_recorded_case_of_the_battery_does_not(fault, tmp_path):
    def verdict(options):
        problem = resolve_problem(CheckRequest(word, None, None, options))
        return probe(problem.case, problem.target, why=False).verdict

    file, function, _ = TARGETS[fault.of]
    (tmp_path / file.name).write_text(fault.plant())
    word = f"{tmp_path / file.name}:{function}"
    target = find_target(word)
    assert verdict({}) == "match"
    takes = TargetSignature(target.family, frozenset(target.takes), target.required)
    cases = ended(case=Case(target.family), takes=takes, is_quick=True).options
    assert verdict(cases[fault.shown_by]) == "mismatch"


# A factor of another branch, and a statement that is missing: no row of the table says either.
UNDONE_BY_NO_ROW = ("sum_not_rescaled_in_whole_tiles", "delta_of_the_first_head_of_the_group")
UNDONE = [fault for fault in STRANGE_FAULTS if fault.name not in UNDONE_BY_NO_ROW]


def program(text):
    return ast.dump(ast.parse(text))


@sampled("fault", UNDONE, push=4, ids=title)
def test_the_edit_that_undoes_a_fault_is_among_the_first(fault):
    """Of 16: at a second each on a core, what two cores try in a third of the time that a check takes for edits."""
    right = set(map(program, mended(fault)))
    found = candidates_of(KernelFile("mine.py", fault.plant()), [Fault(min(fault.lines()))])
    assert any(program(one.text) in right for one in islice(found, 16))


@pytest.mark.nightly
@pytest.mark.parametrize("fault", UNDONE, ids=title)
def test_of_a_fault_that_no_list_holds_the_line_is_told_and_an_edit_tried(fault, tmp_path):
    report = fault.probe(tmp_path, client=Client(budget=lambda: Allowance(60)))
    assert report.verdict == "mismatch"
    assert fault.lines() & {where.line for where in report.diagnoses[0].where}
    edit = next(each.edit for each in report.diagnoses if each.edit is not None)
    assert edit.matches
    new = {line[1:].strip() for line in edit.diff.splitlines()[2:] if line.startswith("+")}
    assert any(new <= {line.strip() for line in text.splitlines()} for text in mended(fault))
