"""`gradprobe check --baseline FILE`: what it says, keeps and refuses, and its exit codes."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command import run, run_process

pytestmark = pytest.mark.usefixtures("without_causes")

COARSE = Path(__file__).resolve().parents[1] / "commands" / "baseline" / "coarse.py"
# A head dim whose scale is no power of two: what is scaled by one is not rounded by that.
TINY = "--batch 1 --heads 2 --seqlen 40 --head-dim 24 --dtype float16"
FILE = Path("errors.json")
DIFF = f"check --baseline {FILE}"


def keep(words):
    return run(f"check {words} --baseline {FILE}")


@pytest.fixture(scope="module")
def saved():
    """What is kept of kernel.py:right, once it was asked for."""
    return []


@pytest.fixture
def kernel(folder, saved):
    """A target whose errors are kept: kernel.py:right."""
    shutil.copy(COARSE, folder / "kernel.py")
    if not saved:
        kept = keep(f"kernel.py:right {TINY}")
        assert (kept.code, kept.err) == (0, "")
        saved.append(FILE.read_bytes())
    FILE.write_bytes(saved[0])
    return folder / "kernel.py"


def edit(kernel, find, replace):
    text = kernel.read_text()
    assert text.count(find) == 1, find
    kernel.write_text(text.replace(find, replace))


def coarsen(kernel, option):
    edit(
        kernel,
        "return backward(q, k, v, do, scale=scale)\n",
        f"return backward(q, k, v, do, scale=scale, {option})\n",
    )


def documents():
    return json.loads(FILE.read_text())["entries"]


def test_it_says_how_much_it_kept_and_what_growth_it_can_tell(folder):
    shutil.copy(COARSE, folder / "kernel.py")
    kept = keep(f"kernel.py:right {TINY}")
    assert kept.out.startswith(
        "kept kernel.py:right --batch 1 --heads 2 --seqlen 40 --head-dim 24 --dtype float16 in "
        "errors.json\n  12 errors over draws 0 to 4; growth is told from noise beyond 1."
    )


def test_the_same_kernel_again_is_the_same_and_0(kernel):
    before = FILE.read_bytes()
    again = run(DIFF)
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("NO GROWTH  kernel.py:right --batch 1")
    assert "0 grown, 12 same, over 5 draws" in " ".join(again.out.split())
    assert again.out.count("1.00×") == 12
    assert keep(f"kernel.py:right {TINY}").out.startswith("NO GROWTH")
    assert FILE.read_bytes() == before


def test_one_rounding_more_is_growth_and_1_though_check_still_matches(kernel):
    coarsen(kernel, "dq_twice=True")
    assert run(f"check kernel.py:right {TINY}").code == 0
    grown = run(DIFF)
    assert grown.code == 1
    assert grown.out.startswith("GROWN  kernel.py:right")
    lines = [line for line in grown.out.splitlines() if line.startswith("GREW ")]
    assert [line.split()[1:3] for line in lines] == [
        ["dQ", "contiguous"], ["dQ", "distinct"], ["dQ", "do=expanded"],
    ]  # fmt: skip
    assert all("rms error 1." in line and "noise up to 1." in line for line in lines)
    assert "✗1." in next(line for line in grown.out.splitlines() if line.startswith("  dQ "))
    assert "✗" not in next(line for line in grown.out.splitlines() if line.startswith("  dK "))


def test_an_improvement_is_told_and_0(kernel):
    coarsen(kernel, "p_twice=True")
    FILE.unlink()
    assert keep(f"kernel.py:right {TINY}").code == 0
    edit(kernel, "scale=scale, p_twice=True)\n\n\ndef p_twice", "scale=scale)\n\n\ndef p_twice")
    better = run(DIFF)
    assert better.code == 0
    assert "↓0." in next(line for line in better.out.splitlines() if line.startswith("  dK "))


def test_a_mismatch_is_1_with_the_words_of_check_first(kernel):
    edit(kernel, '"dK": inner.mT @ wide_q * outer', '"dK": inner.mT @ wide_q * outer * 2')
    wrong = run(DIFF)
    assert wrong.code == 1
    assert wrong.out.startswith("MISMATCH")
    assert len(wrong.first_mismatches) == 1
    assert wrong.first_mismatches[0].startswith("FIRST MISMATCH dK batch=0 head=0")


def test_a_mismatch_is_not_kept(kernel):
    FILE.unlink()
    edit(kernel, '"dK": inner.mT @ wide_q * outer', '"dK": inner.mT @ wide_q * outer * 2')
    wrong = keep(f"kernel.py:right {TINY}")
    assert wrong.code == 1
    assert wrong.out.startswith("MISMATCH")
    assert wrong.out.endswith("not kept: seed 0 is a mismatch, whose errors are no baseline\n")
    assert not FILE.exists()


def test_a_target_that_raises_is_3_and_the_others_are_compared_all_the_same(kernel):
    assert keep(f"sdpa-math {TINY}").code == 0
    edit(kernel, "    def rounded(", "    raise IndexError('no such tile')\n\n    def rounded(")
    ran = run(DIFF)
    assert ran.code == 3
    assert "raised IndexError (contiguous)" in ran.err
    assert ran.out.startswith("NO GROWTH  sdpa-math")


def test_a_layout_that_is_now_refused_is_gone_and_1(kernel):
    edit(kernel, "    def rounded(", "    assert q.stride(-1) == 1, 'no'\n\n    def rounded(")
    ran = run(DIFF)
    assert ran.code == 1
    assert "GONE every intermediate in distinct" in ran.out.splitlines()
    assert "  new, not in the file: every intermediate in distinct-unit" in ran.out.splitlines()


def test_an_intermediate_that_is_gone_is_1_and_a_new_one_is_0(kernel):
    edit(kernel, 'results |= {"dK"', 'results = {"dK"')
    ran = run(DIFF)
    assert ran.code == 1
    assert [line for line in ran.out.splitlines() if line.startswith("GONE ")][:2] == [
        "GONE O in contiguous", "GONE dQ in contiguous",
    ]  # fmt: skip
    FILE.unlink()
    assert keep(f"kernel.py:right {TINY}").code == 0
    edit(kernel, 'results = {"dK"', 'results |= {"dK"')
    back = run(DIFF)
    assert back.code == 0
    assert "  new, not in the file: O in contiguous" in back.out.splitlines()


def test_several_targets_and_cases_live_in_one_file_and_one_can_be_asked_for(kernel):
    for words in (
        f"sdpa-math {TINY}",
        f"sdpa-math {TINY} --causal",
        f"kernel.py:ds_twice {TINY} --seed 7",
    ):
        assert keep(words).code == 0
    kept = documents()
    assert [(one["target"], one["seeds"]) for one in kept] == [
        ("kernel.py:ds_twice", [7, 8, 9, 10, 11]), ("kernel.py:right", [0, 1, 2, 3, 4]),
        ("sdpa-math", [0, 1, 2, 3, 4]), ("sdpa-math", [0, 1, 2, 3, 4]),
    ]  # fmt: skip
    assert "seed" not in kept[0]["options"]
    one = keep(f"sdpa-math {TINY} --causal")
    assert (one.code, one.out.count("NO GROWTH")) == (0, 1)
    assert "--causal" in one.out


def test_no_file_and_no_target_is_2_with_the_way_out():
    ran = run("check --baseline none.json")
    assert ran.code == 2
    assert "there is no such file" in ran.err
    assert "gradprobe check TARGET --baseline FILE" in ran.err


def test_a_broken_file_is_2_before_anything_runs_for_diff_and_save(kernel):
    FILE.write_text("{")
    edit(kernel, "    def rounded(", "    raise IndexError('ran')\n\n    def rounded(")
    for words in (DIFF, f"check kernel.py:right {TINY} --baseline {FILE}"):
        ran = run(words)
        assert ran.code == 2
        assert "cannot be read as JSON" in ran.err
    assert FILE.read_text() == "{"


def test_another_backend_is_2_and_says_what_to_do(kernel):
    document = json.loads(FILE.read_text())
    document["entries"][0]["ran"] = "torch on cuda"
    FILE.write_text(json.dumps(document))
    ran = run(DIFF)
    assert ran.code == 2
    assert "it was saved by torch on cuda, and torch on cpu has other errors" in ran.err
    assert "keep a --baseline for each" in ran.err


def test_a_case_that_resolves_to_another_one_is_2(kernel):
    document = json.loads(FILE.read_text())
    document["entries"][0]["case"]["block_m"] = 64
    FILE.write_text(json.dumps(document))
    ran = run(DIFF)
    assert ran.code == 2
    assert "its case is another one now (block_m 64 -> 32)" in ran.err


def test_another_version_is_a_note_and_no_failure(kernel):
    document = json.loads(FILE.read_text())
    document["entries"][0]["environment"]["torch"] = "1.0"
    FILE.write_text(json.dumps(document))
    ran = run(DIFF)
    assert ran.code == 0
    assert "  the environment has changed, and the noise may have: torch 1.0 -> " in ran.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"check kernel.py:right --inputs x.pt --baseline {FILE}", "--inputs: a file is one draw"),
        (f"check kernel.py:right --seed -1 --baseline {FILE}", "--seed must lie in 0 to 2^63 - 1"),
        (f"check nothing --baseline {FILE}", "neither a built-in"),
        (f"check --baseline {FILE} --contract", "--baseline and --contract ask for two things"),
        (f"check --baseline {FILE} --junit x.xml", "this is written as --json alone"),
        (
            "baseline save",
            "baseline is no command any more: gradprobe check TARGET --baseline FILE",
        ),
        ("contract lazy", "contract is no command any more: gradprobe check TARGET --contract"),
    ],
)
def test_wrong_words_are_2(words, message, kernel):
    ran = run(words, COLUMNS="200")
    assert ran.code == 2
    assert message in ran.err


def test_json_holds_what_the_table_shows(kernel):
    coarsen(kernel, "ds_twice=True")
    ran = run(f"{DIFF} --json -")
    assert ran.code == 1
    document = json.loads(ran.out)
    assert (document["schema"], document["verdict"]) == ("gradprobe.baseline.diff/1", "grown")
    (entry,) = document["entries"]
    grown = {cell["intermediate"] for cell in entry["cells"] if cell["verdict"] == "grown"}
    assert grown == {"dQ", "dK"}
    cell = next(cell for cell in entry["cells"] if cell["intermediate"] == "dQ")
    assert cell["rms"]["factor"] > cell["rms"]["noise"] > 1
    assert cell["rms"]["before"] == documents()[0]["errors"][cell["layout"]]["dQ"]["rms"]


def test_json_of_a_failure_of_a_mismatch_and_of_no_file(kernel):
    assert keep(f"sdpa-math {TINY}").code == 0
    edit(kernel, '"dK": inner.mT @ wide_q * outer', '"dK": inner.mT @ wide_q * outer * 2')
    document = json.loads(run(f"{DIFF} --json -").out)
    assert document["verdict"] == "mismatch"
    assert [one["verdict"] for one in document["entries"]] == ["mismatch", "same"]
    assert document["entries"][0]["schema"] == "gradprobe.report/2"
    edit(kernel, "    def rounded(", "    raise IndexError('no')\n\n    def rounded(")
    document = json.loads(run(f"{DIFF} --json -").out)
    assert [one["verdict"] for one in document["entries"]] == ["error", "same"]
    assert (document["verdict"], document["entries"][0]["target"]["name"]) == (
        "error",
        "kernel.py:right",
    )
    nothing = run("check --baseline none.json --json -")
    assert (nothing.code, json.loads(nothing.out)["verdict"]) == (2, "error")


@pytest.mark.nightly
def test_in_a_pipe_without_utf8_and_narrow_it_is_ascii_and_no_line_is_lost(kernel):
    coarsen(kernel, "dq_twice=True")
    ran = run_process(DIFF, PYTHONIOENCODING="ascii", COLUMNS="40")
    assert ran.code == 1
    assert ran.out.isascii()
    assert "\x1b" not in ran.out
    assert [line.split()[1] for line in ran.out.splitlines() if line.startswith("  dQ ")][
        0
    ].startswith("!1.")
    assert sum(line.startswith("  dQ ") for line in ran.out.splitlines()) == 2, (
        "two layouts, then one"
    )


@pytest.mark.nightly
def test_a_triton_kernel_has_a_baseline_too(folder):
    small = "--batch 1 --heads 1 --seqlen 20 --head-dim 8 --layout all=contiguous"
    assert keep(f"lazy {small}").code == 0
    assert documents()[0]["ran"] == "triton-interpreter on cpu"
    assert set(documents()[0]["kernels"]) >= {"lazy_dq_kernel", "lazy_dkdv_kernel"}
    assert list(documents()[0]["errors"]["contiguous"])[-1] == "dTau"
    assert run(DIFF).code == 0
