"""The workflow of `gradprobe init --ci github`, action.yml and the hooks: valid, quoting-safe, and run step by step."""

import json
import os
import stat
import sys

import check_jsonschema
import pytest
from click.testing import CliRunner

from gradprobe.commands.starter_files import WHEEL, write_workflow
from tests.cli.command import ROOT
from tests.cli.written_targets import write_targets
from tests.commands.ci.steps import load, run_step, steps_of_action, steps_of_workflow
from tests.render.written import assert_is_sarif, read_junit
from tests.sampling import sampled

ACTION = ROOT / "action.yml"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
WRITES = ["--junit", "--sarif", "--json"]
ODD = ["it's.py", "$(touch pwned).py", "-n.py", "überall 核.py", "a\\nb.py"]


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def told(tmp_path):
    """A folder of commands that do nothing but tell what they are given; called, what each was given."""
    commands, log = tmp_path / "told", tmp_path / "log"
    commands.mkdir()
    for name in ("gradprobe", "python3"):
        script = f"#!{sys.executable}\nimport json, sys\n"
        script += f"print(json.dumps([{name!r}, *sys.argv[1:]]), file=open({str(log)!r}, 'a'))\n"
        write_command(commands / name, script)

    log.touch()

    def lines():
        return list(map(json.loads, log.read_text().splitlines()))

    lines.commands = commands
    return lines


@pytest.fixture
def real(tmp_path):
    """A folder with gradprobe as it is installed: a command in the search path."""
    commands = tmp_path / "real"
    commands.mkdir()
    script = f'#!/bin/sh\nPYTHONPATH="{ROOT}" OMP_NUM_THREADS=1 exec "{sys.executable}" -m gradprobe "$@"\n'
    write_command(commands / "gradprobe", script)
    return commands


def write_command(path, script):
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def assert_valid(file, *schemas):
    for schema in schemas or (
        "vendor.github-workflows",
        "custom.github-workflows-require-timeout",
    ):
        ran = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, str(file)])
        assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize(
    "file", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda file: file.stem
)
def test_this_repository_s_own_workflows_are_valid_and_run_what_the_makefile_has(file):
    assert_valid(file)
    makefile = (ROOT / "Makefile").read_text().splitlines()
    rules = {line.partition(":")[0] for line in makefile if not line.startswith("\t")}
    for job in load(file)["jobs"].values():
        runs = job.get("strategy", {}).get("matrix", {}).get("run", [])
        assert {word.removeprefix("make ") for word in runs} <= rules
        own = [step["run"] for step in job["steps"] if step.get("run", "").startswith(".")]
        assert all((ROOT / script).exists() for script in own)


@pytest.mark.parametrize("target", [None, "it's.py:backward", "a\\nb.py:backward"])
def test_what_is_written_is_a_workflow_and_holds_the_target_as_it_is(workspace, target):
    for name in ODD:
        (workspace / name).touch()
    path = workspace / ".github" / "workflows" / "gradprobe.yml"
    write_workflow(path, "github", target)
    assert_valid(path)
    (job,) = load(path)["jobs"].values()
    assert (job["env"]["TARGET"], job["env"]["GRADPROBE"]) == (target or "", WHEEL)
    assert "<<" not in path.read_text()
    steps = [*steps_of_workflow(path).values(), *steps_of_action(ACTION).values()]
    assert len(steps) == 6
    assert not any("${{" in step.script for step in steps), "what github would write into it"


def test_it_is_granted_little_and_runs_no_third_party(workspace):
    write_workflow(workspace / "w.yml", "github", None)
    workflow = load(workspace / "w.yml")
    (job,) = workflow["jobs"].values()
    assert (workflow["permissions"], workflow["on"].keys()) == ({}, {"push", "pull_request"})
    assert job["permissions"] == {"contents": "read", "security-events": "write"}
    assert "pull_request" in workflow["concurrency"]["cancel-in-progress"]
    every = (*job["steps"], *load(ACTION)["runs"]["steps"])
    used = [step["uses"] for step in every if "uses" in step]
    assert len(used) == 9
    assert {word.partition("/")[0] for word in used} == {"actions", "github"}
    assert all(word.rpartition("@")[2].removeprefix("v").isdigit() for word in used)
    checkout = next(step for step in job["steps"] if "checkout" in step.get("uses", ""))
    assert checkout["with"] == {"persist-credentials": False}


@pytest.mark.parametrize(("of", "word"), [
    ("workflow", None), ("action", None),
    *((("workflow", "action")[at % 2], f"{name}:backward") for at, name in enumerate(ODD)),
])  # fmt: skip
def test_a_target_reaches_both_commands_as_one_word_whatever_it_holds(workspace, told, of, word):
    (workspace / ((word or "").rpartition(":")[0] or "lazy")).touch()
    write_workflow(workspace / "w.yml", "github", word)
    given = {"target": word} if word else {}
    is_own = of == "workflow"
    steps = (
        steps_of_workflow(workspace / "w.yml") if is_own else steps_of_action(ACTION, **given)
    )
    for step in list(steps.values())[1:]:
        ran = run_step(step, workspace, told.commands)
        assert (ran.returncode, ran.stderr) == (0, "")
    for line, command in zip(told(), ("check", "strides"), strict=True):
        assert line[:2] == ["gradprobe", command]
        assert ("--github" in line, "--fast" in line) == (True, command == "strides")
        files = [line[line.index(flag) + 1] for flag in WRITES]
        results = [f"gradprobe-results/{command}{end}" for end in (".xml", ".sarif", ".json")]
        assert files == results
        assert line[-2:] == (["--", word] if word else ["--json", results[-1]])
    assert not (workspace / "pwned").exists()


def test_action_and_workflow_install_torch_and_gradprobe(workspace, told, tmp_path):
    step = steps_of_action(ACTION, install="-r requirements.txt\n-e .")["Install gradprobe"]
    ran = run_step(step, workspace, told.commands, action=tmp_path / "an action")
    assert (ran.returncode, ran.stderr) == (0, "")
    pip = ["python3", "-m", "pip", "install"]
    assert told() == [
        [*pip, "torch", "--index-url", "https://download.pytorch.org/whl/cpu"],
        [*pip, "-r", "requirements.txt", "-e", "."],
        [*pip, str(tmp_path / "an action")],
    ]
    assert (tmp_path / "output").read_text() == "results=gradprobe-results\n"
    assert (workspace / "gradprobe-results").is_dir()
    write_workflow(workspace / "w.yml", "github", None)
    ran = run_step(steps_of_workflow(workspace / "w.yml")["Install"], workspace, told.commands)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [line[4] for line in told()[3:]] == ["torch", WHEEL]


def test_action_and_hooks_are_valid():
    assert_valid(ACTION, "vendor.github-actions")
    hooks = load(HOOKS)
    assert [hook["id"] for hook in hooks] == ["gradprobe-check", "gradprobe-strides"]
    for hook in hooks:
        assert (hook["language"], hook["pass_filenames"]) == ("python", False)
        assert hook["require_serial"] is True
        assert hook["entry"].split()[:2] == ["gradprobe", hook["id"].removeprefix("gradprobe-")]


# What each command is given is told above, of both files.
@sampled(
    "of, code, command", [("workflow", 1, "check"), ("action", 0, "strides"), ("action", 1, "check")], push=1
)  # fmt: skip
def test_a_run_here_writes_its_files_and_ends_by_its_verdict(workspace, real, of, code, command):
    name = ("backward", "doubled_dq")[code]
    write_targets(workspace)
    (workspace / "gradprobe-results").mkdir()
    if of == "workflow":
        write_workflow(workspace / "w.yml", "github", f"soft.py:{name}")
        step = steps_of_workflow(workspace / "w.yml")[command.capitalize()]
    else:
        steps = steps_of_action(ACTION, target=f"soft.py:{name}", args="--batch 1 --heads 2")
        step = steps[f"gradprobe {command}"]
    ran = run_step(step, workspace, real)
    assert ran.returncode == code, ran.stderr
    results = workspace / "gradprobe-results"
    document = json.loads((results / f"{command}.json").read_text())
    assert document["verdict"] == ("match", "mismatch")[code]
    assert_is_sarif(json.loads((results / f"{command}.sarif").read_text()))
    failures = read_junit((results / f"{command}.xml").read_text()).findall(".//failure")
    assert bool(failures) == bool(code)
    assert ("::error " in ran.stderr) == bool(code)
    assert os.path.getsize(workspace.parent / "summary") > 0
