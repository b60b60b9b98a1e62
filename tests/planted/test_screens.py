"""The screens of ten failing kernels: from 24 rows alone intermediate, line and fix can be told."""

import json
import re
from pathlib import Path

from gradprobe.inputs.options import flags
from tests.cli.command import run
from tests.planted.planting import TARGETS
from tests.planted.scored import SCORED
from tests.sampling import sampled

# Of each kind one: an address, a sum, a mask, a range, a store, memory that nothing wrote, an arithmetic.
TEN = (
    "do_read_with_q_head_stride", "lse_of_head_0_in_the_backward", "kv_heads_mapped_by_remainder_in_dq",
    "last_partial_row_tile_lost_in_dkdv", "delta_dropped_in_dq", "dk_overwritten_instead_of_added", "dbias_not_zeroed",
    "keys_beyond_the_end_read_in_dq", "mask_without_the_diagonal_in_dq", "dq_stored_with_q_head_stride",
)  # fmt: skip
SCREEN = {"COLUMNS": "80", "GRADPROBE_DETAILS": "0", "GRADPROBE_FIX_BUDGET": "40"}
PLANTED = {fault.name: fault for fault in SCORED if fault.of in ("lazy", "flash")}


def checked(name, folder, monkeypatch):
    """The lines that `gradprobe check` prints of a planted fault, and the report."""
    monkeypatch.chdir(folder)
    changed = PLANTED[name]
    Path(f"{name}.py").write_text(changed.plant())
    _, function, small = TARGETS[changed.of]
    options = (small | changed.options).items()
    given = flags({word: value for word, value in options if value is not None})
    ran = run(["check", f"{name}.py:{function}", *given, "--json", "report.json"], **SCREEN)
    assert ran.code == 1
    return ran.out.splitlines(), json.loads(Path("report.json").read_text())


def is_cut_of(shown, code):
    kept = map(re.escape, re.split(r"^\.\.\. | \.\.\.$", shown.strip()))
    return re.fullmatch(".*".join(kept), code) is not None


@sampled("name", TEN, push=[])
def test_intermediate_line_and_fix_can_be_told(name, tmp_path, monkeypatch):
    lines, report = checked(name, tmp_path, monkeypatch)
    assert sum(-(-max(1, len(line)) // 80) for line in lines) <= 24, "\n".join(lines)
    trial = PLANTED[name]
    (first,) = [line.split()[2] for line in lines if line.startswith("FIRST MISMATCH ")]
    assert first == trial.first

    cause = next(number for number, line in enumerate(lines) if line.startswith("CAUSE  "))
    place = next(line for line in lines[cause:] if re.match(r"  \S+\.py:\d+", line))
    assert int(re.search(r"\.py:(\d+)", place)[1]) in trial.lines()
    edits = [one["edit"] for one in report["diagnoses"] if one["edit"]]
    diff = next(edit["diff"] for edit in edits if edit["diff"])
    added = {line[1:].strip() for line in diff.splitlines()[2:] if line.startswith("+")}
    shown = [line[4:] for line in lines if line.startswith("  + ")]
    assert shown
    assert [each for each in shown if not any(is_cut_of(each, code) for code in added)] == []
