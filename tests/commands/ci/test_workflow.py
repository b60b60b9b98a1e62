"""The workflow of `gradprobe init --ci github`, action.yml and the hooks: valid, quoting-safe, and run step by step."""

import itertools
import json
import os
import re
import stat
import sys

import check_jsonschema
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from gradprobe.commands.starter_files import requirement, write_workflow
from tests.cli.command import ROOT
from tests.cli.written_targets import write_targets
from tests.commands.ci.steps import load, run_step, steps_of_action, steps_of_workflow
from tests.render.written import assert_is_sarif, read_junit
from tests.sampling import sampled

ACTION = ROOT / "action.yml"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
WRITES = ["--junit", "--sarif", "--json"]
ODD = ["my kernel.py", "it's.py", 'a"b.py', "$(touch pwned).py", "`touch pwned`.py", "a;touch pwned;b.py", "-n.py",
       "überall 核.py", "a\\nb.py", "100%.py", "#x.py", "{a: b}.py"]  # fmt: skip


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

    def lines():
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

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


def assert_valid(schema, file):
    ran = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, str(file)])
    assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize(
    "file", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda file: file.stem
)
def test_this_repository_s_own_workflows_are_valid_and_run_what_the_makefile_has(file):
    assert_valid("vendor.github-workflows", file)
    assert_valid("custom.github-workflows-require-timeout", file)
    rules = {
        line.partition(":")[0]
        for line in (ROOT / "Makefile").read_text().splitlines()
        if not line.startswith("\t")
    }
    for job in load(file)["jobs"].values():
        runs = job.get("strategy", {}).get("matrix", {}).get("run", [])
        assert {word.removeprefix("make ") for word in runs} <= rules
        assert all(
            (ROOT / step["run"]).exists()
            for step in job["steps"]
            if step.get("run", "").startswith(".")
        )


@pytest.mark.parametrize(
    "target", [None, "lazy", "soft.py:backward", *(f"{name}:backward" for name in ODD)]
)
def test_what_is_written_is_a_workflow_and_holds_the_target_as_it_is(workspace, target):
    for name in (*ODD, "soft.py"):
        (workspace / name).touch()
    path = workspace / ".github" / "workflows" / "gradprobe.yml"
    write_workflow(path, "github", target)
    assert_valid("vendor.github-workflows", path)
    assert_valid("custom.github-workflows-require-timeout", path)
    (job,) = load(path)["jobs"].values()
    assert job["env"]["TARGET"] == (target or "")
    assert job["env"]["GRADPROBE"] == requirement()
    assert "<<" not in path.read_text()


def test_it_is_granted_little_and_runs_no_third_party(workspace):
    write_workflow(workspace / "w.yml", "github", None)
    workflow = load(workspace / "w.yml")
    (job,) = workflow["jobs"].values()
    assert workflow["on"] == {"push": None, "pull_request": None}
    assert workflow["permissions"] == {}
    assert job["permissions"] == {"contents": "read", "security-events": "write"}
    assert job["timeout-minutes"] == 20
    assert "pull_request" in workflow["concurrency"]["cancel-in-progress"]
    used = [
        step["uses"] for step in (*job["steps"], *load(ACTION)["runs"]["steps"]) if "uses" in step
    ]
    assert len(used) == 9
    assert {word.partition("/")[0] for word in used} == {"actions", "github"}
    assert all(word.rpartition("@")[2].removeprefix("v").isdigit() for word in used)
    assert next(step for step in job["steps"] if "checkout" in step.get("uses", ""))["with"] == {
        "persist-credentials": False
    }


def test_no_script_holds_what_github_would_write_into_it(workspace):
    write_workflow(workspace / "w.yml", "github", "lazy")
    steps = [*steps_of_workflow(workspace / "w.yml").values(), *steps_of_action(ACTION).values()]
    assert len(steps) == 6
    assert all("${{" not in step.script for step in steps)


@pytest.mark.parametrize(
    "word", ["lazy", "soft.py:backward", *(f"{name}:backward" for name in ODD)]
)
@pytest.mark.parametrize("of", ["workflow", "action"])
def test_a_target_reaches_both_commands_as_one_word_whatever_it_holds(workspace, told, of, word):
    (workspace / (word.rpartition(":")[0] or "lazy")).touch()
    if of == "workflow":
        write_workflow(workspace / "w.yml", "github", word)
        steps = [
            step
            for name, step in steps_of_workflow(workspace / "w.yml").items()
            if name != "Install"
        ]
    else:
        steps = list(steps_of_action(ACTION, target=word).values())[1:]
    for step in steps:
        ran = run_step(step, workspace, told.commands)
        assert (ran.returncode, ran.stderr) == (0, "")
    assert [line[:2] for line in told()] == [["gradprobe", "check"], ["gradprobe", "strides"]]
    assert [line[-2:] for line in told()] == [["--", word]] * 2
    assert ["--fast" in line for line in told()] == [False, True]
    for line, command in zip(told(), ("check", "strides"), strict=True):
        assert "--github" in line
        files = [line[line.index(flag) + 1] for flag in WRITES]
        assert files == [
            f"gradprobe-results/{command}.{ending}" for ending in ("xml", "sarif", "json")
        ]
    assert not (workspace / "pwned").exists()


@pytest.mark.parametrize("of", ["workflow", "action"])
def test_without_a_target_what_pyproject_configures_is_checked(workspace, told, of):
    write_workflow(workspace / "w.yml", "github", None)
    steps = steps_of_workflow(workspace / "w.yml") if of == "workflow" else steps_of_action(ACTION)
    for step in list(steps.values())[1:]:
        assert run_step(step, workspace, told.commands).returncode == 0
    assert [line[-2:] for line in told()] == [
        ["--json", f"gradprobe-results/{name}.json"] for name in ("check", "strides")
    ]


@pytest.mark.parametrize(("args", "words"), [
    ("", []),
    ("--heads 4 --causal", ["--heads", "4", "--causal"]),
    ("  --heads\t4\n--layout do=blhd \n", ["--heads", "4", "--layout", "do=blhd"]),
    ("* ; touch pwned $(touch pwned) 'a b'", ["*", ";", "touch", "pwned", "$(touch", "pwned)", "'a", "b'"]),
])  # fmt: skip
def test_the_actions_options_are_split_at_spaces_and_nothing_in_them_is_run(
    workspace, told, args, words
):
    (workspace / "some.py").touch()
    check, strides = list(
        steps_of_action(ACTION, target="lazy", args=args, strides="full").values()
    )[1:]
    for step in (check, strides):
        assert run_step(step, workspace, told.commands).returncode == 0
    for line, command in zip(told(), ("check", "strides"), strict=True):
        assert line[1 : 3 + len(words)] == [command, *words, "--github"]
    assert not (workspace / "pwned").exists()


def test_the_action_installs_torch_what_is_asked_for_and_itself(workspace, told, tmp_path):
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


def test_the_action_refuses_other_words_for_strides_before_it_installs_anything(workspace, told):
    step = steps_of_action(ACTION, strides="quick", torch_index="")["Install gradprobe"]
    ran = run_step(step, workspace, told.commands)
    assert (ran.returncode, told()) == (2, [])
    assert ran.stderr == "gradprobe: the input strides must be fast, full or none, got 'quick'\n"


def test_the_workflow_installs_the_torch_without_cuda_first(workspace, told):
    write_workflow(workspace / "w.yml", "github", None)
    ran = run_step(steps_of_workflow(workspace / "w.yml")["Install"], workspace, told.commands)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [line[4] for line in told()] == ["torch", requirement()]
    assert (workspace / "gradprobe-results").is_dir()


def test_action_and_hooks_are_valid():
    assert_valid("vendor.github-actions", ACTION)
    hooks = load(HOOKS)
    assert [hook["id"] for hook in hooks] == ["gradprobe-check", "gradprobe-strides"]
    for hook in hooks:
        assert (hook["language"], hook["pass_filenames"], hook["require_serial"]) == (
            "python",
            False,
            True,
        )
        assert hook["entry"].split()[:2] == ["gradprobe", hook["id"].removeprefix("gradprobe-")]


def test_what_the_page_shows_is_yaml_that_needs_no_address():
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    action, hooks = (
        YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    )
    assert action["steps"][1]["uses"] == "./vendor/gradprobe"
    assert action["steps"][1]["with"].keys() <= load(ACTION)["inputs"].keys()
    (repository,) = hooks["repos"]
    (hook,) = repository["hooks"]
    kept = next(one for one in load(HOOKS) if one["id"] == hook["id"])
    assert (repository["repo"], hook["entry"].startswith(kept["entry"])) == ("local", True)


def test_both_commands_tell_all_that_happened_also_where_the_check_failed():
    steps = {step["name"]: step for step in load(ACTION)["runs"]["steps"] if "name" in step}
    for name in ("gradprobe strides", "Upload SARIF of the check", "Upload SARIF of the strides"):
        assert steps[name]["if"].startswith("${{ !cancelled() && ")
    categories = [
        step["with"]["category"] for step in steps.values() if "category" in step.get("with", {})
    ]
    assert len(set(categories)) == len(categories) == 2


# What each command is given is told above, of both files.
PUSH = [("workflow", 1, "check")]


@sampled(
    "of, code, command",
    itertools.product(["workflow", "action"], [0, 1], ["check", "strides"]),
    push=PUSH,
)
def test_a_run_reproduced_here_writes_its_files_and_ends_by_its_verdict(
    workspace, real, of, code, command
):
    name = ("backward", "doubled_dq")[code]
    write_targets(workspace)
    (workspace / "gradprobe-results").mkdir()
    if of == "workflow":
        write_workflow(workspace / "w.yml", "github", f"soft.py:{name}")
        step = steps_of_workflow(workspace / "w.yml")[command.capitalize()]
    else:
        step = steps_of_action(ACTION, target=f"soft.py:{name}", args="--batch 1 --heads 2")[
            f"gradprobe {command}"
        ]
    ran = run_step(step, workspace, real)
    assert ran.returncode == code, ran.stderr
    results = {path.name: path for path in (workspace / "gradprobe-results").iterdir()}
    assert results.keys() == {f"{command}.xml", f"{command}.sarif", f"{command}.json"}
    assert (
        json.loads(results[f"{command}.json"].read_text())["verdict"] == ("match", "mismatch")[code]
    )
    assert_is_sarif(json.loads(results[f"{command}.sarif"].read_text()))
    failures = read_junit(results[f"{command}.xml"].read_text()).findall(".//failure")
    assert bool(failures) == bool(code)
    assert ("::error " in ran.stderr) == bool(code)
    assert os.path.getsize(workspace.parent / "summary") > 0


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["check", "strides"])
def test_a_workflow_without_a_target_checks_what_pyproject_configures(workspace, real, command):
    write_targets(workspace)
    (workspace / "pyproject.toml").write_text(
        '[tool.gradprobe]\ntargets = ["soft.py:doubled_dq", "soft.py:backward"]\n'
    )
    (workspace / "gradprobe-results").mkdir()
    write_workflow(workspace / "w.yml", "github", None)
    ran = run_step(steps_of_workflow(workspace / "w.yml")[command.capitalize()], workspace, real)
    assert ran.returncode == 1, ran.stderr
    document = json.loads((workspace / "gradprobe-results" / f"{command}.json").read_text())
    assert [(report["target"]["name"], report["verdict"]) for report in document["reports"]] == [
        ("soft.py:doubled_dq", "mismatch"), ("soft.py:backward", "match")
    ]  # fmt: skip
