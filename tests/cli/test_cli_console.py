import json
import re
import signal
import time

import pytest

from gradprobe.cli.root import COMMANDS
from tests.cli.command import SMALL, run, run_on_terminal, run_process, start
from tests.sampling import sampled

FAILING = f"check soft.py:wrong_delta {SMALL}"
LINE = re.compile(
    r"^FIRST MISMATCH (P|O|LSE|delta|d[A-Z][A-Za-z]*) batch=(\d+|-) head=\d+ row=(\d+|-) col=(\d+|-) "
    r"tile=(\d+|-),(\d+|-) actual=\S+ expected=\S+ ratio=(\d+(\.\d+)?(e\d+)?|inf)x$"
)

pytestmark = pytest.mark.usefixtures("made_once")


def test_the_first_mismatch_is_one_line_of_a_fixed_form_at_any_width_and_nan_is_a_word():
    ran = run(f"check soft.py:nan_in_dk {SMALL} --json out.json", COLUMNS="40")
    (line,) = ran.first_mismatches
    beginning = "FIRST MISMATCH dK batch=0 head=1 row=3 col=2 tile=-,0 actual=nan expected="
    assert (ran.code, line.startswith(beginning), bool(LINE.match(line))) == (1, True, True)
    assert not [line for line in ran.out.splitlines() if line != line.rstrip()]
    with open("out.json") as file:
        assert json.load(file)["first_mismatch"]["actual"] == "NaN"


def test_a_match_prints_no_first_mismatch_and_counts_every_element_that_was_compared():
    ran = run(f"check soft.py:backward {SMALL}")
    assert (ran.code, ran.err, ran.first_mismatches) == (0, "", [])
    head = "MATCH  soft.py:backward: 7 intermediates within budget in 3 layouts (float32, "
    assert ran.out.startswith(head)
    # P, dP, dS 400 each, delta 20, dQ, dK, dV 160 each: 1700 a head, 2 heads, 3 layouts.
    told = "compared 10,200 elements: every one of 7 intermediates in 3 runs, 1 batch, 2 heads"
    assert told in ran.out


WARNS = """
import warnings
warnings.warn('imported by an old name', stacklevel=1)
def f(q, k, v, scale):
    warnings.warn('block pointers are deprecated', DeprecationWarning)
    return (scale * q @ k.mT).softmax(-1) @ v
"""


@pytest.mark.nightly
def test_what_a_target_warns_of_is_one_line_of_its_report_and_all_of_it_in_the_file(folder):
    (folder / "warns.py").write_text(WARNS)
    ran = run_process(
        f"check warns.py:f {SMALL} --no-recover --json report.json", GRADPROBE_DETAILS=""
    )
    assert (ran.code, ran.err) == (0, "")
    assert "  2 warnings from the target: --details shows them\n" in ran.out
    assert json.loads((folder / "report.json").read_text())["target_warnings"] == [
        "warns.py:3: UserWarning: imported by an old name",
        "warns.py:5: DeprecationWarning: block pointers are deprecated",
    ]


RECTANGLE = "check soft.py:backward --causal --batch 1 --heads 1 --seqlen-q 20 --seqlen-k 16"
SAID = [
    (f"check lazily.py:backward {SMALL} --tau -1,1",
     ("row 0 of dS and dQ is 0 by design: it sees one key, so P = 1", "; not exposed: LSE",
      "row 0 of O is 0 by design where tau <= -1 cancels P = 1: head 0")),
    (RECTANGLE, ("causal is aligned bottom-right", "for one, --align top-left",
                 "rows 0 to 3 see no key (M > N)")),
    (f"check soft.py:gradients_of_keys_without_0 {SMALL}",
     ("P and dS are not recovered in contiguous: target 'soft.py:gradients_of_keys_without_0' raised",
      "AssertionError (contiguous): a key holds a 0")),
    (f"check soft.py:only_gradients {SMALL} --layout do=expanded",
     ("P and dS are not recovered in do=expanded: a layout that repeats values holds no one-hot rows",)),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), SAID)
def test_what_is_by_design_how_a_mask_lies_and_why_nothing_is_recovered_is_said(words, said):
    told = " ".join(run(words).out.split())
    assert all(piece in told for piece in said), told


def test_a_terminal_gets_colour_and_no_line_of_the_table_is_folded():
    ran = run_on_terminal(FAILING, columns=80)
    assert (ran.code, "\x1b[1;31mMISMATCH\x1b[0m" in ran.out) == (1, True)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", ran.out)
    assert sum(bool(LINE.match(line)) for line in plain.splitlines()) == 1


def test_a_terminal_without_utf_8_gets_ascii_and_a_reader_may_leave(folder):
    (folder / "größe.py").write_text((folder / "soft.py").read_text())
    words = f"check größe.py:wrong_delta {SMALL}"
    ran = run_process(words, PYTHONIOENCODING="ascii", LC_ALL="C.UTF-8")
    assert (ran.code, ran.err, len(ran.first_mismatches), ran.out.isascii()) == (1, "", 1, True)
    assert "gr\\xf6\\xdfe.py" in ran.out
    with start(FAILING) as process:
        process.stdout.close()
        err = process.stderr.read().decode()
        process.wait(timeout=120)
    assert (process.returncode, err) == (1, "")


def test_ctrl_c_shows_what_was_measured_and_keeps_it_as_incomplete(folder):
    (folder / "slow.py").write_text(
        "import pathlib, time\nfrom soft import backward\ndef f(q, k, v, do, scale):\n"
        # What the first layout gave is on its way to the parent for a moment.
        "    if not q.is_contiguous():\n        time.sleep(1)\n"
        "        pathlib.Path('begun').touch()\n        time.sleep(600)\n"
        "    return backward(q, k, v, do, scale=scale)\n"
    )
    with start(f"check slow.py:f {SMALL} --json out.json") as process:
        deadline = time.monotonic() + 60
        while not (folder / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = (stream.decode() for stream in process.communicate(timeout=60))
    assert (process.returncode, "  contiguous " in out) == (130, True)
    assert "gradprobe: interrupted after 1 of 3 layouts\n" in err
    document = json.loads((folder / "out.json").read_text())
    assert (document["verdict"], document["runs"][0]["layout"]) == ("incomplete", "contiguous")


@sampled("command", sorted(COMMANDS), push=["check", "sweep", "init"])
def test_a_help_fits_in_60_lines_of_80_columns_and_says_how_to_see_the_rest(command):
    lines = run(f"{command} --help", COLUMNS="80").out.splitlines()
    assert (len(lines) <= 60, max(map(len, lines)) <= 80) == (True, True)
    whole, short = run(f"{command} --help-all", COLUMNS="80").out, "\n".join(lines)
    if "--help-all" in short:
        assert lines[-1].strip().endswith(f"more options: gradprobe {command} --help-all")
        assert "--heads" in short
        assert ("--max-memory" in short, "--max-memory" in whole) == (False, True)
