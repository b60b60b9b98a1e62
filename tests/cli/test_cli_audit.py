import json
import shutil

from gradprobe.model.documents import report_from
from gradprobe.render.screen import rendered
from gradprobe.render.terminal import Terminal
from tests.cli.command import SMALL, run
from tests.pipeline import written


def test_a_wrong_reference_exits_with_1_and_its_line_and_a_right_one_with_0(folder):
    shutil.copy(written.__file__, folder / "mine.py")
    ran = run("audit mine.py:unmasked_again --json kept.json")
    lines = ran.out.splitlines()
    assert ran.code == 1
    assert lines[0].startswith("MISMATCH  mine.py:unmasked_again is wrong from line ")
    assert lines[1].startswith("FIRST MISMATCH ") or lines[2].startswith("FIRST MISMATCH ")
    at = next(
        at for at, line in enumerate(lines) if line.endswith(" | P = torch.softmax(S, dim=-1)")
    )
    assert lines[at + 1].strip(" |") == "^" * len("torch.softmax(S, dim=-1)")
    assert "  dQ, dK and dV wrong in causal; right in not causal" in lines
    assert all(len(line) <= 100 for line in lines)

    report = report_from(json.loads((folder / "kept.json").read_text()))
    assert report.verdict == "mismatch"
    assert report.diagnoses[0].fault == "mask/causal"
    assert [line.plain for line in rendered(report, Terminal(100, None, utf8=True))] == lines
    ran = run("audit mine.py:by_formulas")
    assert ran.code == 0
    assert ran.out.startswith("MATCH  mine.py:by_formulas is right: every element in 6 cases")
    assert "called with torch tensors of [B, H, L, D]" in ran.out


def test_check_refuses_a_wrong_reference_with_its_line_and_says_nothing_of_the_kernel(folder):
    shutil.copy(written.__file__, folder / "mine.py")
    ran = run(f"check soft.py:backward --causal --reference mine.py:unmasked_again {SMALL}")
    assert (ran.code, ran.out) == (3, "")
    assert (
        "the verdict is about the reference: mine.py:unmasked_again: the causal mask is left out ("
        in ran.err
    )
    assert "P = torch.softmax(S, dim=-1)" in ran.err
    assert "gradprobe audit mine.py:unmasked_again" in ran.err
