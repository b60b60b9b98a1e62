import json

import pytest

from tests.cli.command import ROOT, run
from tests.cli.test_cli_errors import assert_message

CASES = [
    ("softmax", "backward", "--causal --dtype float16"),
    ("lazy", "forward", "--no-bias --heads 4 --tau=-1 --dtype float16"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "function", "options"), CASES)
def test_what_it_writes_matches_and_says_where_the_kernel_goes(
    family, function, options, folder
):
    ran = run(f"init mine.py --family {family}")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "wrote mine.py\nnext: gradprobe check mine.py:backward\n"
    text = (folder / "mine.py").read_text(encoding="utf-8")
    assert text.count("# YOUR KERNEL: ") == 2
    assert "import gradprobe" not in text
    assert "gradprobe_adapter" not in text
    ran = run(f"check mine.py:{function} {options} --json -")
    report = json.loads(ran.out)
    assert (ran.code, report["verdict"], report["case"]["family"]) == (0, "match", family), (
        ran.out
    )
    assert [run["layout"] for run in report["runs"]] == ["contiguous", "distinct", "do=expanded"]
    assert [run["skipped"] for run in report["runs"]] == [None] * 3
    exposed = [
        row["name"] for row in report["runs"][0]["intermediates"] if row["source"] == "exported"
    ]
    tail = ["dTau"] if family == "lazy" else []
    tail = ["dBias", *tail] if family == "lazy" and "--no-bias" not in options else tail
    assert exposed == [*["O"] * (function == "forward"), "dQ", "dK", "dV", *tail]


@pytest.mark.parametrize(
    ("words", "file", "written"),
    [
        ("init", "gradprobe_adapter.py", "def backward("),
        ("init --ci github", ".github/workflows/gradprobe.yml", "gradprobe check"),
    ],
)
def test_a_file_that_is_there_is_left_as_it_is_without_force(words, file, written, folder):
    assert run(words).out.splitlines()[0] == f"wrote {file}"
    (folder / file).write_text("mine = 1\n")
    ran = run(words)
    assert ran.code == 2
    assert_message(ran, f"{file} already exists", "--force")
    assert (folder / file).read_text() == "mine = 1\n"
    assert run(f"{words} --force").code == 0
    assert written in (folder / file).read_text()


WORKFLOW = ".github/workflows/gradprobe.yml"


def test_a_workflow_goes_where_github_looks_and_the_next_steps_are_said(folder):
    (folder / ".git").mkdir()
    ran = run("init --ci github --target soft.py:backward")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        f"wrote {WORKFLOW}\nnext: python3 -m pip wheel --no-deps --wheel-dir vendor {ROOT}\n"
        f"next: git add vendor {WORKFLOW}, commit and push\n"
    )
    assert 'TARGET: "soft.py:backward"\n' in (folder / WORKFLOW).read_text(encoding="utf-8")
    assert not (folder / "gradprobe_adapter.py").exists()
