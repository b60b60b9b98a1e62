import json

import pytest

from gradprobe.cli.option_rows import BUILT_IN
from tests.cli.command import ROOT, SMALL, run, run_process

SEGFAULT = "import ctypes\ndef f(q, k, v, do, *, scale):\n    ctypes.string_at(0)\n"


def configure(folder, text):
    (folder / "pyproject.toml").write_text(text)


def test_check_without_words_runs_every_target_on_every_case(folder):
    (folder / "fatal.py").write_text(SEGFAULT)
    configure(
        folder,
        '[tool.gradprobe]\ntargets = ["soft.py:backward", "fatal.py:f", "soft.py:doubled_dq"]\ntimeout = 60\n'
        "[tool.gradprobe.cases.small]\nbatch = 1\nheads = 2\nseqlen = 20\nhead-dim = 8\n",
    )
    ran = run("check --json all.json", GRADPROBE_ISOLATE="1")
    assert ran.code == 1
    assert ran.err == "gradprobe: [tool.gradprobe] of pyproject.toml is in force\n"
    verdicts = [line.split()[:3] for line in ran.out.splitlines()[1:4]]
    assert verdicts == [
        ["MATCH", "soft.py:backward", "small"], ["ERROR", "fatal.py:f", "small"],
        ["MISMATCH", "soft.py:doubled_dq", "small"],
    ]  # fmt: skip
    assert ran.first_mismatches[0].startswith("FIRST MISMATCH dQ batch=0 head=1 row=0 col=0 ")
    assert ran.out.splitlines()[-1].endswith(": 1 match, 1 mismatch, 1 error")
    document = json.loads((folder / "all.json").read_text())
    assert [report["title"] for report in document["reports"]] == [
        "soft.py:backward small", "fatal.py:f small", "soft.py:doubled_dq small",
    ]  # fmt: skip
    assert document["reports"][1]["error"]["kind"] == "Crash"
    last = json.loads((folder / ".gradprobe" / "last.json").read_text())
    assert last["target"] == "soft.py:doubled_dq"  # which `diff` repeats


def test_a_word_on_the_command_line_checks_that_alone_under_what_is_in_force(folder):
    configure(
        folder,
        '[tool.gradprobe]\ntargets = ["no_such.py:f"]\nlayouts = ["contiguous", "q=blhd,do=blhd"]\n',
    )
    ran = run(f"check soft.py:backward {SMALL}")
    assert ran.code == 0
    layouts = [line.split()[0] for line in ran.out.splitlines() if ", worst " in line]
    assert layouts == ["contiguous", "q=blhd,do=blhd"]
    ran = run(f"check soft.py:backward --layout do=offset {SMALL}")
    assert (ran.code, "blhd" in ran.out) == (0, False)
    assert "do=offset" in ran.out


def test_from_a_folder_below_paths_are_the_file_s_and_no_torch_is_loaded(folder, monkeypatch):
    configure(
        folder,
        '[tool.gradprobe]\ntargets = ["soft.py:backward"]\n[tool.gradprobe.cases.c]\nheads = 2\nseqlen = 20\n',
    )
    (folder / "below").mkdir()
    (folder / "below" / "sitecustomize.py").write_text(
        "import os, sys\n"
        "end = os._exit\n"
        "def told(code):\n"
        "    os.write(2, f\"LOADED {sorted({'torch'} & set(sys.modules))}\\n\".encode())\n"
        "    end(code)\n"
        "if sys.argv[:1] == ['-m']:\n"
        "    os._exit = told\n"
    )
    monkeypatch.chdir(folder / "below")
    ran = run_process("check", PYTHONPATH=f"{folder / 'below'}:{ROOT}")
    assert ran.code == 0
    assert ran.err.startswith("gradprobe: [tool.gradprobe] of ../pyproject.toml is in force\n")
    assert "LOADED []\n" in ran.err
    assert ran.out.splitlines()[1].split()[:3] == ["MATCH", "../soft.py:backward", "c"]


@pytest.mark.parametrize(
    ("words", "code", "first", "said"),
    [
        ("--runs contiguous", 0, f"MATCH  {BUILT_IN}: ", ""),
        ("", 2, "", "[tool.grad-probe] is no table of gradprobe's\n  did you mean [tool.gradprobe]?"),
    ],
)  # fmt: skip
def test_without_a_target_the_built_in_or_a_misspelt_table_is_named(
    folder, words, code, first, said
):
    if code:
        configure(folder, '[tool.grad-probe]\ntargets = ["lazy"]\n')
    ran = run(f"check {SMALL} {words}")
    assert (ran.code, ran.out[: len(first)]) == (code, first)
    assert said in ran.err
