"""What the dataflow of interpreted kernels shows of sums and masks: what is left out, and by which line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradprobe.diagnosis.causes import with_dataflow
from gradprobe.diagnosis.dataflow import suspects
from gradprobe.diagnosis.explainers.diagnoses import diagnoses_of
from gradprobe.frontends import source
from gradprobe.model.report import Diagnosis
from tests.diagnosis.following import followed
from tests.planted.planting import Edit
from tests.planted.trials import Changed


def test_a_sum_that_begins_with_nothing_times_nan_holds_what_is_added_once(tmp_path: Path) -> None:
    kernel, seen = "flash_forward_kernel", "seen = visible(m, n, distance, live_m, live_n, left, right)"
    unseen = Edit(kernel, seen, f"{seen} & (m > 0)")
    file, nan = tmp_path / "nan.py", Edit(kernel, 'tl.where(new_max == float("-inf"), 0.0, new_max)', "new_max")
    file.write_text(Changed("nan", "flash", (unseen, nan)).plant())
    run = followed("flash", "contiguous", {}, file)
    (visits,) = (counts for home, counts in run.flow.visits.items() if run.outcome.storages.get(home) == "O")
    assert visits.max() == 1


def test_what_is_made_of_a_sum_that_lacks_keys_is_not_accused_beside_the_sum(tmp_path: Path) -> None:
    kernel, file = "flash_forward_kernel", tmp_path / "cut.py"
    cut = Edit(kernel, "range(first, end, BLOCK_N)", "range(first + BLOCK_N, end, BLOCK_N)")
    inverse = Edit(kernel, "o / safe_sum[:, None]", "o * (1.0 / safe_sum)[:, None]")
    file.write_text(Changed("cut", "flash", (cut, inverse)).plant())
    found = suspects(followed("flash", "contiguous", {}, file), ("O", "dQ", "dK", "dV"))
    assert [(one.kind, one.name) for one in found if one.is_sure] == [("pairs", "O")]


def pairs_of_dkdv(folder: Path, find: str, replace: str, **options: Any) -> list[Diagnosis]:
    file, changed = folder / "pairs.py", Changed("pairs", "flash", (Edit("flash_dkdv_kernel", find, replace),))
    file.write_text(changed.plant())
    told = diagnoses_of(suspects(followed("flash", "contiguous", {"heads": 1, **options}, file), ("dK", "dV")))
    assert changed.lines() & {where.line for where in told[0].where}
    return told


def test_what_a_loop_leaves_out_of_two_results_is_one_cause_and_was_never_summed_and_lost(tmp_path: Path) -> None:
    told = pairs_of_dkdv(tmp_path, "range(first, end, BLOCK_M)", "range(first, end - BLOCK_M, BLOCK_M)", causal=True)
    assert [one.fault for one in told] == ["pairs/dK"]
    assert told[0].summary.startswith("dK and dV are not summed over")
    lost = Diagnosis("accumulation/dK", "ACC", "it is overwritten, not added to", 1.0)
    assert with_dataflow([lost], told) == told


def test_what_is_overwritten_was_summed_and_lost(tmp_path: Path) -> None:
    told = pairs_of_dkdv(tmp_path, "dk += tl.dot(", "dk = tl.dot(", causal=True)
    lost = Diagnosis("accumulation/dK", "ACC", "it is overwritten, not added to", 1.0)
    assert with_dataflow([lost], told)[0].fault == lost.fault


def test_a_forward_that_sums_nothing_is_told_there_where_all_that_it_stores_is_nan(tmp_path: Path) -> None:
    file = tmp_path / "none.py"
    never = Edit("flash_forward_kernel", "range(first, end, BLOCK_N)", "range(end, end, BLOCK_N)")
    by_0 = Edit("flash_forward_kernel", "tl.where(row_sum == 0.0, 1.0, row_sum)", "row_sum")
    file.write_text(Changed("none", "flash", (never, by_0)).plant())
    first = suspects(followed("flash", "contiguous", {}, file), ("O", "dQ", "dK", "dV"))[0]
    assert (first.kind, first.name, first.site.kernel) == ("pairs", "O", "flash_forward_kernel")


def test_tiles_that_a_head_alone_lacks_are_told_with_what_says_which_tile_a_program_takes(tmp_path: Path) -> None:
    took_one = Edit("flash_dq_kernel", "pid % n_tiles", "pid % n_tiles * (pid // n_tiles % n_heads)")
    file, changed = tmp_path / "taken.py", Changed("taken", "flash", (took_one,))
    file.write_text(changed.plant())
    found = suspects(followed("flash", "contiguous", {}, file), ("dQ",))[0]
    assert (found.kind, found.name, found.site.kernel) == ("unstored", "dQ", "flash_dq_kernel")
    assert "of dQ, the first at batch 0, head 0, row 32" in found.reason
    beside = [line for chain in found.beside for _, line in chain]
    assert changed.lines() & set(beside)
    assert len(beside) <= 8


def test_what_is_right_and_not_masked_is_told_in_a_backward_too_where_the_forward_is_wrong(tmp_path: Path) -> None:
    of_forward = Edit(
        "lazy_forward_kernel", "tl.where(valid, tl.maximum(p + floor[:, None], 0.0), 0.0)",
        "tl.maximum(p + floor[:, None], 0.0)",
    )  # fmt: skip
    of_dv = Edit("lazy_dkdv_kernel", "tl.where(valid, tl.maximum(z, 0.0), 0.0)", "tl.maximum(z, 0.0)")
    changed = Changed("unmasked", "lazy", (of_forward, of_dv))
    file = tmp_path / "unmasked.py"
    file.write_text(changed.plant())
    found = suspects(followed("lazy", "contiguous", {}, file), ("O", "dQ", "dV"))
    assert [one.site.kernel for one in found if one.is_sure] == ["lazy_forward_kernel", "lazy_dkdv_kernel"]
    assert {one.lines[-1][1] for one in found if one.is_sure} <= changed.lines()


def test_a_loop_that_never_runs_is_told_at_what_it_should_have_summed(tmp_path: Path) -> None:
    changed = Changed(
        "never", "flash", (Edit("flash_dq_kernel", "range(first, end, BLOCK_N)", "range(end, end, BLOCK_N)"),)
    )
    file = tmp_path / "never.py"
    file.write_text(changed.plant())
    (found,) = suspects(followed("flash", "contiguous", {}, file), ("dQ",))
    assert (found.kind, found.name, found.site.kernel) == ("pairs", "dQ", "flash_dq_kernel")
    assert changed.lines() & {at for _, line in found.lines for at in source(str(file)).loops(line)}
