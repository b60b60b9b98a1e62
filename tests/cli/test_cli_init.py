"""`gradprobe init`: an adapter that runs as it is, or a workflow, and never over what is there."""

import json
from pathlib import Path

import pytest

from tests.cli.command import ROOT, run
from tests.cli.test_cli_errors import assert_message
from tests.sampling import sampled

SOFTMAX = [
    "", "--causal", "--heads 4 --kv-heads 2",
    "--causal --heads 4 --kv-heads 1 --seqlen-q 80 --seqlen-k 60 --head-dim-v 16",
    "--seqlen-q 60 --seqlen-k 80 --causal --dtype float16", "--dtype bfloat16 --pattern large", "--scale 0.7",
]  # fmt: skip
LAZY = ["", "--no-bias", "--heads 4 --tau=-1 --dtype float16", "--dtype bfloat16 --bias-window 100"]


def test_it_says_what_it_wrote_and_the_next_command(folder):
    ran = run("init")
    assert (ran.code, ran.err) == (0, "")
    assert (
        ran.out
        == "wrote gradprobe_adapter.py\nnext: gradprobe check gradprobe_adapter.py:backward\n"
    )
    assert (folder / "gradprobe_adapter.py").is_file()


CASES = [*(("softmax", options) for options in SOFTMAX), *(("lazy", options) for options in LAZY)]
FUNCTIONS = ("backward", "forward")


# On every push every second case, of the two functions in turn.
@sampled(
    "family, options, function",
    [(*case, function) for case in CASES for function in FUNCTIONS],
    push=[(*case, FUNCTIONS[at % 2]) for at, case in enumerate(CASES[::2])],
)
def test_what_it_writes_matches_in_all_three_layouts(family, options, function):
    assert run(f"init mine.py --family {family}").code == 0
    ran = run(f"check mine.py:{function} {options} --json -")
    report = json.loads(ran.out)
    assert (ran.code, report["verdict"], report["case"]["family"]) == (0, "match", family), ran.out
    assert [run["layout"] for run in report["runs"]] == ["contiguous", "distinct", "do=expanded"]
    assert [run["skipped"] for run in report["runs"]] == [None] * 3
    exposed = [
        row["name"] for row in report["runs"][0]["intermediates"] if row["source"] == "exported"
    ]
    tail = ["dTau"] if family == "lazy" else []
    tail = ["dBias", *tail] if family == "lazy" and "--no-bias" not in options else tail
    inner = ["LSE", "P", "O", "dP", "delta", "dS", "dQ", "dK", "dV"]
    assert exposed == (
        [*inner, *tail] if function == "backward" else ["O", "dQ", "dK", "dV", *tail]
    )


def test_an_option_that_the_adapter_lacks_is_refused_and_not_dropped():
    run("init mine.py")
    ran = run("check mine.py:backward --softcap 5")
    assert ran.code == 2
    assert_message(ran, "cannot take --softcap: it has no such parameter")


@pytest.mark.parametrize("family", ["softmax", "lazy"])
def test_what_it_writes_marks_where_the_kernel_goes_and_names_no_file_of_its_own(family, folder):
    run(f"init mine.py --family {family}")
    text = (folder / "mine.py").read_text(encoding="utf-8")
    assert text.count("# YOUR KERNEL: ") == 2
    assert "import gradprobe" not in text
    assert "gradprobe_adapter" not in text


def test_a_file_that_is_there_is_left_as_it_is_and_exits_2(folder):
    (folder / "gradprobe_adapter.py").write_text("mine = 1\n")
    ran = run("init")
    assert ran.code == 2
    assert_message(ran, "gradprobe_adapter.py already exists", "--force")
    assert (folder / "gradprobe_adapter.py").read_text() == "mine = 1\n"


def test_force_writes_over_it(folder):
    (folder / "gradprobe_adapter.py").write_text("mine = 1\n")
    assert run("init --force").code == 0
    assert "def backward(" in (folder / "gradprobe_adapter.py").read_text()


@pytest.mark.parametrize(("words", "pieces"), [
    ("init --target soft.py:backward", ("--target says what a workflow checks, and no workflow", "add --ci github")),
    ("init --ci gitlab", ("--ci must be github, got 'gitlab'",)),
    ("init --ci github --family lazy", ("--family says which adapter to write, and --ci", "drop one")),
    ("init --ci github w.txt", ("init --ci writes a YAML file, got w.txt", ".github/workflows/gradprobe.yml")),
    ("init --ci github soft.py/w.yml", ("soft.py: cannot be made, File exists",)),
    ("init --ci github soft.py/a/w.yml", ("soft.py/a: cannot be made, Not a directory",)),
    ("init --ci github --target lazyy", ("target 'lazyy' is neither a built-in nor FILE.py:FUNCTION",)),
    ("init --ci github --target none.py:f", ("--target none.py:f: there is no file none.py", "the repository's root")),
    ("init --ci github --target /none.py:f", ("only sees the repository", "name it from its root")),
    ("init --ci github --target ../none.py:f", ("only sees the repository", "name it from its root")),
    ("init --ci github --target ${{secrets.X}}:f", ("cannot be written into a workflow",)),
    ("init --ci github --target a\u0007b:f", ("cannot be written into a workflow",)),
    ("init --ci github a\u0007.yml", ("cannot be written into a workflow",)),
    ("init --family flash", ("--family must be softmax or lazy, got 'flash'",)),
    ("init adapter.txt", ("init writes a Python file, got adapter.txt",)),
    ("init .", ("init writes a Python file, got .", "for example gradprobe_adapter.py")),
    ("init no/such/adapter.py", ("no/such/adapter.py: cannot be written, No such file or directory",)),
])  # fmt: skip
def test_a_path_or_family_that_cannot_be_exits_2(words, pieces):
    ran = run(words)
    assert ran.code == 2
    assert_message(ran, *pieces)


def test_a_path_with_a_space_is_quoted_in_the_next_command(folder):
    from typer.testing import CliRunner

    from gradprobe.cli import app

    result = CliRunner().invoke(app, ["init", "my kernel.py"], prog_name="gradprobe")
    assert result.stdout == "wrote my kernel.py\nnext: gradprobe check 'my kernel.py:backward'\n"
    assert Path(folder / "my kernel.py").is_file()


WORKFLOW = ".github/workflows/gradprobe.yml"


def test_a_workflow_goes_where_github_looks_and_the_next_steps_are_said(folder, monkeypatch):
    (folder / ".git").mkdir()
    monkeypatch.setattr("gradprobe.commands.starter_files._recorded", dict)
    ran = run("init --ci github --target soft.py:backward")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        f"wrote {WORKFLOW}\nnext: python3 -m pip wheel --no-deps --wheel-dir vendor {ROOT}\n"
        f"next: git add vendor {WORKFLOW}, commit and push\n"
    )
    assert 'TARGET: "soft.py:backward"\n' in (folder / WORKFLOW).read_text(encoding="utf-8")
    assert not (folder / "gradprobe_adapter.py").exists()


def test_outside_the_root_of_a_repository_a_note_says_that_github_looks_there(folder):
    ran = run("init --ci github")
    assert (ran.code, ran.out.splitlines()[0]) == (0, f"wrote {WORKFLOW}")
    assert (
        ran.err
        == "gradprobe: GitHub reads workflows at the root of a repository, which this folder is not\n"
    )


def test_a_workflow_that_is_there_is_left_as_it_is_without_force(folder):
    run("init --ci github")
    (folder / WORKFLOW).write_text("mine: 1\n")
    ran = run("init --ci github")
    assert ran.code == 2
    assert_message(ran, f"{WORKFLOW} already exists", "--force")
    assert (folder / WORKFLOW).read_text() == "mine: 1\n"
    assert run("init --ci github --force").code == 0
    assert "gradprobe check" in (folder / WORKFLOW).read_text()


def test_a_workflow_goes_to_another_path_which_its_cache_depends_on(folder):
    assert run("init --ci github ci/kernels.yaml").code == 0
    assert (
        'cache-dependency-path: "ci/kernels.yaml"\n' in (folder / "ci" / "kernels.yaml").read_text()
    )


def test_a_workflow_that_is_refused_leaves_no_folder_behind(folder):
    before = sorted(path.name for path in folder.iterdir())
    assert run("init --ci github --target lazyy").code == 2
    assert sorted(path.name for path in folder.iterdir()) == before
