"""Of a kernel that matches, what is right only by coincidence is told at its line; of a right one nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradprobe.diagnosis.coincidence import _FOLLOWED, Variation, _culprits, _SmallRuns, sought, variations
from gradprobe.diagnosis.follow import followed_run
from gradprobe.model.allowance import NOTHING, Allowance
from gradprobe.model.assignment import DEFAULT_RUNS, Assigned
from gradprobe.model.layout_run import MATCH
from gradprobe.model.memory_finding import WarningNote
from gradprobe.numerics.evidence import LayoutRun
from gradprobe.pipeline.probe import COINCIDENCES, probe
from gradprobe.probing.experiment import Experiment, experiment_of
from gradprobe.probing.runs import outcomes_of, records_of
from gradprobe.runtime.backend import prepare_backend
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.lint.written import reading_of_word
from tests.planted.planting import Edit, edited
from tests.planted.trials import TARGETS
from tests.sampling import sampled
from tests.strangers.faults import STRANGERS, file_of

CONTIGUOUS = {"batch": 1, "heads": 2, "head_dim": 8, "layouts": (("all", "contiguous"),)}
STRIDES, LENGTHS, HEADS = "batch", "seqlen_q", "kv_heads"


MANY = 40


def warnings_in(experiment: Experiment, variation: Variation, count: int = MANY) -> list[WarningNote]:
    return _SmallRuns(experiment, count).warnings_in(variation)


def source_of(name: str) -> tuple[Path, str]:
    file, function, _ = TARGETS[name] if name in TARGETS else (file_of(name), STRANGERS[name][0], None)
    return file, function


def checked(file: Path, function: str, options: dict[str, Any]) -> tuple[Experiment, list[LayoutRun]]:
    """A check in which everything matches."""
    prepare_backend("auto")
    case = (lazy_case if "lazy" in function else softmax_case)(**CONTIGUOUS | options)
    experiment = experiment_of(case, find_target(f"{file}:{function}"))
    records = list(records_of(experiment))
    runs = [record.run for record in records if record.run is not None]
    assert [run.verdict for run in runs] == [MATCH]
    return experiment.after(outcomes_of(records)), runs


def of(experiment: Experiment, runs: list[LayoutRun], option: str) -> Variation:
    """The one variation that has an option."""
    (found,) = (one for one in variations(experiment.case, runs) if option in one.options)
    return found


# What is planted in which file, the lengths, what the variation has in which it shows, and parts of what is said.
FAULTS: list[tuple[str, str, Edit, dict[str, Any], str, tuple[str, ...]]] = [
    ("the stride of another tensor in the call of a helper", "grouped",
     Edit("grouped_dq", "V, j, d, vi, vd", "V, j, d, ki, vd"), {"seqlen": 20}, STRIDES,
     ("v is advanced by ki, which is k.stride(2)", "--batch 2 --layout distinct")),
    ("a last stride taken for 1", "grouped", Edit("grouped_dq", "i, d, gi, gd", "i, d, gi, 1"), {"seqlen": 20}, STRIDES,
     ("do is read outside its elements",)),
    ("keys masked by the number of rows", "grouped",
     Edit("grouped_dq", "V, j, d, vi, vd, n_k", "V, j, d, vi, vd, n_q"), {"seqlen": 20}, LENGTHS,
     ("v is not accessed at key 36, as others are", "--seqlen-q 36 --seqlen-k 40")),
    ("rows masked by the number of keys", "grouped",
     Edit("grouped_dkdv", "G, i, d, gi, gd, n_q", "G, i, d, gi, gd, n_k"), {"seqlen": 20}, LENGTHS,
     ("do is accessed outside its elements",)),
    ("the head of one of two by another map", "grouped", Edit("grouped_dkdv", "v = _matrix(V + b * vb + h * vh",
     "v = _matrix(V + b * vb + h * GROUP * vh"), {"seqlen": 20}, HEADS,
     ("v is accessed outside its elements", "--heads 4 --kv-heads 2")),
    ("the stride of another tensor in a later tile", "one_pass",
     Edit("one_pass_backward", "do = _tile(do_ptr, rows + ROWS, do_l", "do = _tile(do_ptr, rows + ROWS, q_l"),
     {"seqlen": 36}, STRIDES, ("do is advanced by q_l, which is q.stride(2)",)),
    ("the stride of another tensor of a block", "blocks",
     Edit("blocks_dkdv", "do_ptr += b * do_b + h * do_h", "do_ptr += b * do_b + h * q_h"),
     {"seqlen": 36, "shapes": "blhd"}, STRIDES, ("do is advanced by q_h, which is q.stride(1)",)),
    ("the stride of another tensor in one kernel", "flash",
     Edit("flash_preprocess_kernel", "h * stride_doh", "h * stride_oh"), {"seqlen": 20}, STRIDES,
     ("do is advanced by stride_oh, which is o.stride(1)",)),
]  # fmt: skip


@sampled("fault", FAULTS, push=[FAULTS[2], FAULTS[4]], ids=lambda fault: fault[0])
def test_what_is_right_only_by_coincidence_is_told_at_its_line(fault, tmp_path):
    _, name, edit, options, option, said = fault
    file, function = source_of(name)
    before, after = file.read_text(), edited(file.read_text(), (edit,))
    copy = tmp_path / file.name
    copy.write_text(after)
    pairs = zip(before.splitlines(), after.splitlines(), strict=True)
    lines = [at for at, (old, new) in enumerate(pairs, 1) if old != new]
    experiment, runs = checked(copy, function, options)
    (warned,) = warnings_in(experiment, of(experiment, runs, option))
    assert (warned.kind, warned.file, [warned.line]) == ("coincidence", str(copy), lines)
    assert all(part in warned.words for part in said)
    found = reading_of_word(f"{copy}:{function}").findings
    assert {(one.line, one.tensor) for one in found} in (set(), {(warned.line, warned.about.partition(" ")[0])})


@sampled("name", ["grouped", "flash", "lazy", "one_pass", "blocks"], push=1)
def test_of_a_right_kernel_nothing_is_told(name):
    shapes = {"shapes": "blhd"} if name == "blocks" else {}
    assert sought(*checked(*source_of(name), {"seqlen": 36, **shapes}), MANY) == ()


def test_of_a_kernel_whose_way_it_is_nothing_is_told(tmp_path):
    file, function = source_of("grouped")
    by_q = (Edit("grouped_dq", "K, j, d, ki", "K, j, d, qi"), Edit("grouped_dq", "V, j, d, vi", "V, j, d, qi"))
    copy = tmp_path / file.name
    copy.write_text(edited(file.read_text(), by_q))
    experiment, runs = checked(copy, function, {"seqlen": 20})
    assert warnings_in(experiment, of(experiment, runs, STRIDES)) == []
    assert sought(experiment, runs, 0) == ()


CAUSAL = {"seqlen": 20, "causal": True}


def grouped_with(folder: Path, *pairs: tuple[str, str]) -> tuple[Experiment, list[LayoutRun]]:
    """A check of the grouped kernels with other text in all of them."""
    file, function = source_of("grouped")
    text, copy = file.read_text(), folder / file.name
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    copy.write_text(text)
    return checked(copy, function, CAUSAL)


def test_of_a_kernel_with_its_diagonal_in_the_other_corner_nothing_is_told(tmp_path):
    experiment, runs = grouped_with(tmp_path, ("i[:, None] + n_k - n_q", "i[:, None]"))
    lengths = of(experiment, runs, LENGTHS)
    assert _SmallRuns(experiment, MANY).is_right(lengths)
    assert warnings_in(experiment, lengths) == []


def test_a_tile_behind_the_last_key_leaves_no_keys_in_what_is_made_of_rows(tmp_path):
    experiment, runs = grouped_with(
        tmp_path, ("range(0, n_k, T)", "range(0, n_k + T, T)"), ("i[:, None] + n_k - n_q", "i[:, None]")
    )
    lengths = of(experiment, runs, LENGTHS)
    run = followed_run(experiment_of(lengths.case, experiment.target), ())
    found = [one.reason for one in _culprits(run)]
    assert found == []


def test_a_run_that_is_followed_counts_as_six(tmp_path):
    experiment, runs = grouped_with(tmp_path, ("V, j, d, vi, vd", "V, j, d, ki, vd"))
    strides = of(experiment, runs, STRIDES)
    assert warnings_in(experiment, strides, 1 + _FOLLOWED)
    assert warnings_in(experiment, strides, _FOLLOWED) == []


def test_a_check_that_matches_is_warned_of_and_matches(tmp_path):
    file, function = source_of("grouped")
    copy = tmp_path / file.name
    copy.write_text(edited(file.read_text(), (FAULTS[0][2],)))
    others = {"kv_heads": 1, "seqlen_q": 20, "seqlen_k": 36}  # so that strides alone are left out
    case, target = softmax_case(**CONTIGUOUS | others), find_target(f"{copy}:{function}")
    report = probe(case, target, budget=lambda of: Allowance(MANY) if of == COINCIDENCES else NOTHING)
    (warned,) = report.warnings
    assert (report.verdict, warned.kind, warned.line) == (MATCH, "coincidence", 94)


def varied(runs: tuple[Assigned, ...], family: Any = softmax_case, **options: Any) -> list[tuple[Any, ...]]:
    case = family(runs=runs, **options)
    found = variations(case, [LayoutRun("", assigned, None, "") for assigned in runs])
    return [(*one.options.values(), len(one.layouts)) for one in found]


def test_only_what_the_runs_of_a_check_left_out_is_varied():
    assert varied(DEFAULT_RUNS) == [(36, 40, 1), (4, 2, 1)]
    assert varied(DEFAULT_RUNS, lazy_case) == []
    assert varied(((),)) == [(2,), (36, 40, 1), (4, 2, 1)]
    assert varied(((), (("do", "expanded"),)), lazy_case) == [(2,)]
    assert varied(DEFAULT_RUNS, batch=1, heads=1) == [(2, 2, 1), (36, 40, 1), (4, 2, 1)]
    assert varied(DEFAULT_RUNS, seqlen=64, heads=4, kv_heads=2) == [(40, 1), (36, 40, 1)]
    assert varied(DEFAULT_RUNS, seqlen_q=32, seqlen_k=64, heads=4, kv_heads=2) == [(40, 36, 1)]
    assert varied(DEFAULT_RUNS, seqlen_q=36, seqlen_k=40, heads=4, kv_heads=2) == []
    assert varied(DEFAULT_RUNS, cu_seqlens=(0, 20, 36)) == []


def test_a_small_case_keeps_what_a_target_may_need():
    small = variations(softmax_case(seqlen=1000, heads=6, batch=4, runs=((),)), [])[0].case
    assert (small.batch, small.heads, small.kv_heads, small.seqlen_q) == (2, 2, 2, 104)
    small = variations(softmax_case(seqlen=128, heads=8, kv_heads=2, shapes="lhd", batch=1, runs=((),)), [])[0].case
    assert (small.batch, small.heads, small.kv_heads, small.seqlen_q) == (1, 8, 2, 128)
