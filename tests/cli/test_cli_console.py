"""The console report: the place in one greppable line, tables that fit, and nothing a terminal cannot show."""

import json
import re

import pytest

from gradprobe.cli.root import COMMANDS
from tests.cli.command import SMALL, run, run_on_terminal, run_process
from tests.sampling import sampled

FAILING = f"check soft.py:wrong_delta {SMALL}"
LINE = re.compile(
    r"^FIRST MISMATCH (P|O|LSE|delta|d[A-Z][A-Za-z]*) batch=(\d+|-) head=\d+ row=(\d+|-) col=(\d+|-) "
    r"tile=(\d+|-),(\d+|-) actual=\S+ expected=\S+ ratio=(\d+(\.\d+)?(e\d+)?|inf)x$"
)

pytestmark = pytest.mark.usefixtures("made_once")


FIRST_LINES = [
    ("wrong_delta", "FIRST MISMATCH delta batch=0 head=1 row=7 col=- tile=0,- actual="),
    ("leaky_p", "FIRST MISMATCH P batch=0 head=1 row=2 col=9 tile=0,0 actual="),
    ("doubled_dq", "FIRST MISMATCH dQ batch=0 head=1 row=0 col=0 tile=0,- actual="),
    ("nan_in_dk", "FIRST MISMATCH dK batch=0 head=1 row=3 col=2 tile=-,0 actual=nan expected="),
    ("infinite_dq", "FIRST MISMATCH dQ batch=0 head=1 row=4 col=5 tile=0,- actual=inf expected="),
]


@sampled("name, beginning", FIRST_LINES, push=FIRST_LINES[::2][:2] + [FIRST_LINES[3]])
@sampled("columns", [40, 80, 120], push=[80])
def test_the_first_mismatch_is_one_line_of_a_fixed_form_at_any_width(name, beginning, columns):
    ran = run(f"check soft.py:{name} {SMALL}", COLUMNS=str(columns))
    assert ran.code == 1
    assert len(ran.first_mismatches) == 1
    assert LINE.match(ran.first_mismatches[0])
    assert ran.first_mismatches[0].startswith(beginning)


def test_the_first_mismatch_stands_on_the_second_line_with_its_numbers():
    ran = run(FAILING)
    verdict, line = ran.out.splitlines()[:2]
    assert verdict.startswith(
        "MISMATCH  delta is the first wrong intermediate in head 1 of 2 (soft.py:wrong_delta"
    )
    numbers = dict(word.split("=") for word in line.split() if "=" in word)
    assert float(numbers["actual"]) - float(numbers["expected"]) == pytest.approx(3.5, abs=0.002)
    assert f"[{numbers['actual']}]" in ran.out


def test_a_match_prints_no_first_mismatch():
    ran = run(f"check soft.py:backward {SMALL}")
    assert (ran.code, ran.err, ran.first_mismatches) == (0, "", [])
    assert ran.out.startswith(
        "MATCH  soft.py:backward: 7 intermediates within budget in 3 layouts (float32, "
    )


BESIDE_KERNELS = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(q_ptr, o_ptr):
    tl.store(o_ptr, tl.load(q_ptr))

def attention(q, k, v, scale):
    if q.is_cuda:
        return kernel[(1,)](q, q)
    return (scale * q @ k.mT).softmax(-1) @ v
"""


def test_a_match_of_torch_alone_beside_kernels_says_so(folder):
    (folder / "kernels.py").write_text(BESIDE_KERNELS)
    (folder / "adapter.py").write_text(
        "from kernels import attention\ndef f(q, k, v, scale): return attention(q, k, v, scale)\n"
    )
    for word in ("kernels.py:attention", "adapter.py:f"):
        ran = run_process(f"check {word} {SMALL} --device cpu --no-recover", COLUMNS="200")
        assert ran.out.splitlines()[0].endswith(
            "; torch alone ran: no kernel of kernels.py was launched"
        )


WARNS = """
import warnings
warnings.warn('imported by an old name', stacklevel=1)
def f(q, k, v, scale):
    warnings.warn('block pointers are deprecated', DeprecationWarning)
    return (scale * q @ k.mT).softmax(-1) @ v
def raises(q, k, v, scale):
    f(q, k, v, scale)
    raise KeyError(0)
"""
WARNED = [
    "warns.py:3: UserWarning: imported by an old name",
    "warns.py:5: DeprecationWarning: block pointers are deprecated",
]


def test_what_a_target_warns_of_is_one_line_of_its_report_and_nothing_on_stderr(folder):
    (folder / "warns.py").write_text(WARNS)
    ran = run_process(
        f"check warns.py:f {SMALL} --no-recover --json report.json", GRADPROBE_DETAILS=""
    )
    assert (ran.code, ran.err) == (0, "")
    assert "  2 warnings from the target: --details shows them\n" in ran.out
    assert json.loads((folder / "report.json").read_text())["target_warnings"] == WARNED
    shown = run("show report.json", COLUMNS="200").out
    assert all(shown.count(f"  the target warns: {words}\n") == 1 for words in WARNED)


def test_what_a_target_warns_of_stands_beside_its_failure(folder):
    (folder / "warns.py").write_text(WARNS)
    ran = run_process(f"check warns.py:raises {SMALL} --no-recover")
    assert ran.code == 3
    assert all(ran.err.count(f"  the target warns: {words}\n") == 1 for words in WARNED)


@pytest.mark.parametrize("heads", [4, 128])
@sampled("columns", [80, 120], push=1)
def test_no_line_of_a_mismatch_in_4_or_128_heads_is_longer_than_the_terminal(heads, columns):
    ran = run(
        f"check soft.py:wrong_delta {SMALL} --heads {heads} --json report.json",
        COLUMNS=str(columns),
    )
    assert ran.code == 1
    free = (
        "FIRST MISMATCH",
        "  again: ",
        "  soft.py sha256",
    )  # never wrapped: to be found, pasted and opened
    long = [
        line for line in ran.out.splitlines() if len(line) > columns and not line.startswith(free)
    ]
    assert long == []
    (header,) = [
        line
        for line in ran.out.splitlines()
        if line.startswith("  worst error / allowed, by head ")
    ]
    assert header.split("by head")[1].split() == ["0,", f"2-{heads - 1}", "1"]


def test_in_128_heads_the_wrong_one_is_named_and_marks_its_group():
    ran = run(f"check soft.py:wrong_delta {SMALL} --heads 128", COLUMNS="80")
    assert " in head 1 of 128" in ran.out.replace("\n" + " " * 10, " ")
    row = next(line.split() for line in ran.out.splitlines() if line.startswith("  delta "))
    assert [cell.startswith("✗") for cell in row[1:]] == [False, True]


def test_every_intermediate_stands_in_dataflow_order_with_its_status():
    ran = run(f"check lazily.py:backward {SMALL}")
    lines = ran.out.splitlines()
    start = next(
        at for at, line in enumerate(lines) if line.startswith("  worst error / allowed, by head ")
    )
    names = [line.split()[0] for line in lines[start + 1 : start + 11]]
    assert names == ["P", "O", "dP", "delta", "dS", "dQ", "dK", "dV", "dBias", "dTau"]
    assert "; not exposed: LSE" in ran.out


def test_the_words_of_a_refusal_are_folded_to_the_width(folder):
    text = "from soft import backward\ndef f(q, k, v, do, scale):\n    if not do.is_contiguous():\n"
    text += (
        "        raise ValueError('dO\\n' + 'has strides that this kernel does not take, ' * 4)\n"
    )
    (folder / "picky.py").write_text(text + "    return backward(q, k, v, do, scale=scale)\n")
    ran = run(f"check picky.py:f {SMALL}", COLUMNS="80")
    assert ran.code == 0
    assert "  distinct       skipped: ValueError: dO has strides" in ran.out
    assert [line for line in ran.out.splitlines() if len(line) > 80] == []


def test_zeros_by_design_are_explained_and_not_flagged():
    ran = run(f"check lazily.py:backward {SMALL} --tau -1,1")
    assert ran.code == 0
    assert "row 0 of dS and dQ is 0 by design: it sees one key, so P = 1" in ran.out
    assert "row 0 of O is 0 by design where tau <= -1 cancels P = 1: head 0" in ran.out


def test_what_a_diagonal_from_the_other_corner_would_do_is_said_of_the_corner_that_was_asked_for():
    rectangle = "check soft.py:backward --causal --batch 1 --heads 1 --seqlen-q 20 --seqlen-k 16"
    words = " ".join(run(rectangle).out.split())
    assert "aligned to the bottom right, j <= i + N - M" in words
    assert "for one, --align top-left" in words
    assert "rows 0 to 3 see no key (M > N)" in words
    assert "row 0 of dS" not in words
    words = " ".join(run(f"{rectangle} --align top-left").out.split())
    assert "aligned to the top left, j <= i; a bottom-right kernel differs" in words
    assert "see no key" not in words
    assert "row 0 of dS and dQ is 0 by design: it sees one key" in words


def test_a_row_that_sees_one_key_and_a_sink_is_not_said_to_be_0():
    assert "by design" not in run(f"check soft.py:backward {SMALL} --causal --sinks").out


def test_the_receipt_counts_every_element_that_was_compared():
    # P, dP, dS 400 each, delta 20, dQ, dK, dV 160 each: 1700 a head, 2 heads, 3 layouts.
    ran = run(f"check soft.py:backward {SMALL}")
    assert (
        "compared 10,200 elements: every one of 7 intermediates in 3 runs, 1 batch, 2 heads"
        in ran.out
    )


@pytest.mark.nightly
def test_a_pipe_gets_no_escape_code():
    ran = run_process(FAILING)
    assert ran.code == 1
    assert "\x1b" not in ran.out + ran.err


def test_a_terminal_gets_colour_and_no_line_of_the_table_is_folded():
    ran = run_on_terminal(FAILING, columns=80)
    assert ran.code == 1
    assert "\x1b[1;31mMISMATCH\x1b[0m" in ran.out
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", ran.out)
    # At the top and, since this report is taller than the screen, once more in its last line.
    found = [at for at, line in enumerate(plain.splitlines()) if LINE.match(line)]
    assert len(found) == 2
    assert found[1] == len(plain.splitlines()) - 1


@sampled("words", [FAILING, f"diff delta soft.py:wrong_delta {SMALL}"], push=1)
def test_no_color_leaves_no_escape_code_on_a_terminal(words):
    ran = run_on_terminal(words, bar=False, NO_COLOR="1")
    assert ran.code == 1
    assert "\x1b" not in ran.out


@pytest.mark.nightly
def test_force_color_colours_a_pipe_and_keeps_the_first_mismatch_on_one_line():
    ran = run_process(FAILING, FORCE_COLOR="1", COLUMNS="40")
    assert ran.code == 1
    assert "\x1b[1;31mMISMATCH\x1b[0m" in ran.out
    line = next(line for line in ran.out.splitlines() if "FIRST MISMATCH" in line)
    assert LINE.match(re.sub(r"\x1b\[[0-9;]*m", "", line))


@sampled("words", [FAILING, "check --help", f"diff delta soft.py:wrong_delta {SMALL}"], push=1)
def test_a_terminal_that_is_not_utf_8_gets_ascii_only(words):
    ran = run_process(words, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert ran.code == (0 if "help" in words else 1)
    assert ran.out.isascii()
    assert ran.err == ""


@pytest.mark.nightly
def test_a_path_that_the_terminal_cannot_write_is_escaped(folder):
    (folder / "größe.py").write_text((folder / "soft.py").read_text())
    ran = run_process(f"check größe.py:wrong_delta {SMALL}", PYTHONIOENCODING="ascii")
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.isascii()
    assert "gr\\xf6\\xdfe.py" in ran.out
    assert len(ran.first_mismatches) == 1


@sampled("name, code", [("wrong_delta", 1), ("backward", 0)], push=1)
@sampled("json", ["", "--json -"], push=1)
def test_a_reader_that_leaves_early_does_not_change_the_exit_code(name, code, json):
    from tests.cli.command import start

    with start(f"check soft.py:{name} {SMALL} {json}") as process:
        process.stdout.close()
        err = process.stderr.read().decode()
        process.wait(timeout=120)
    assert (process.returncode, err) == (code, "")


def test_ctrl_c_exits_130_without_a_traceback(folder):
    import signal

    from tests.cli.command import start

    (folder / "slow.py").write_text(
        "import pathlib, time\ndef f(q, k, v, do):\n    pathlib.Path('begun').touch()\n    time.sleep(60)\n"
    )
    with start(f"check slow.py:f {SMALL}") as process:
        _wait_for(folder / "begun")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert err.endswith(b"gradprobe: interrupted\n  nothing was done yet\n")


def test_ctrl_c_shows_the_layout_that_was_measured_and_keeps_it_in_the_file_as_incomplete(folder):
    import json
    import signal

    from tests.cli.command import start

    (folder / "slow.py").write_text(
        "import pathlib, time\nfrom soft import backward\ndef f(q, k, v, do, scale):\n"
        "    if not q.is_contiguous():\n        pathlib.Path('begun').touch()\n        time.sleep(600)\n"
        "    return backward(q, k, v, do, scale=scale)\n"
    )
    with start(f"check slow.py:f {SMALL} --json out.json") as process:
        _wait_for(folder / "begun")
        process.send_signal(signal.SIGINT)
        out, err = (stream.decode() for stream in process.communicate(timeout=60))
    assert process.returncode == 130
    assert "  contiguous " in out
    assert "gradprobe: interrupted after 1 of 3 layouts\n" in err
    document = json.loads((folder / "out.json").read_text())
    assert document["verdict"] == "incomplete"
    assert "contiguous" in (folder / "out.json").read_text()


def _wait_for(file):
    import time

    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_slow_target_shows_a_bar_on_a_terminal_and_clears_it(folder):
    text = "import time\nfrom soft import backward\nwaits = [2.5]\ndef f(q, k, v, do, scale):\n"
    text += "    time.sleep(waits.pop() if waits else 0)\n"
    (folder / "slow.py").write_text(text + "    return backward(q, k, v, do, scale=scale)\n")
    ran = run_on_terminal(f"check slow.py:f {SMALL} --layout q=contiguous")
    assert ran.code == 0
    assert "run 1, slow.py:f, q=conti" in ran.out
    before, _, report = ran.out.partition("MATCH")
    # From the first moment on the case stands above it.
    first, *_ = before.partition("importing torch and the tar")
    assert "slow.py:f  B=1 H=2 L=20 D=8 float32\n" in first
    assert "\x1b[?25h" in before
    assert "run 1" not in report


def test_a_bar_that_comes_too_late_is_not_drawn():
    from gradprobe.render.terminal import Progress

    progress = Progress()
    with progress:
        pass
    progress._show()
    assert progress._bar is None


@pytest.mark.parametrize(
    "words", [FAILING, f"check soft.py:leaky_p {SMALL}", f"diff dS soft.py:backward {SMALL}"]
)
def test_no_line_ends_in_a_space(words):
    assert [line for line in run(words).out.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("command", ["check", "strides"])
def test_the_help_names_the_table_of_pyproject_that_configures_a_command(command):
    assert "tool.gradprobe" in run(f"{command} --help", COLUMNS="200").out


@sampled("command", sorted(COMMANDS), push=["check", "sweep", "init"])
def test_a_help_fits_in_60_lines_of_80_columns_and_says_how_to_see_the_rest(command):
    lines = run(f"{command} --help", COLUMNS="80").out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    whole = run(f"{command} --help-all", COLUMNS="80").out
    if "--help-all" in "\n".join(lines):
        assert lines[-1].strip().endswith(f"more options: gradprobe {command} --help-all")
        assert len(whole.splitlines()) > 150
        assert "--heads" in "\n".join(lines)
        assert "--max-memory" not in "\n".join(lines)
        assert "--max-memory" in whole
