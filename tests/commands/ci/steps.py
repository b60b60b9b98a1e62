"""The steps of a workflow or a composite action, run here as GitHub's runner runs them."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

# What the runner starts where `shell` is not given, and where it is `bash`.
SHELLS = {None: ["bash", "-e"], "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"]}
_INPUT = re.compile(r"\$\{\{ inputs\.([a-z-]+) \}\}")


@dataclass(frozen=True)
class Step:
    name: str
    script: str
    shell: str | None
    env: Mapping[str, str]


def load(file: Path) -> Any:
    return YAML(typ="safe").load(file.read_text(encoding="utf-8"))


def steps_of_workflow(file: Path) -> dict[str, Step]:
    (job,) = load(file)["jobs"].values()
    return {
        step["name"]: Step(step["name"], step["run"], step.get("shell"), job["env"] | step.get("env", {}))
        for step in job["steps"] if "run" in step
    }  # fmt: skip


def steps_of_action(file: Path, **inputs: str) -> dict[str, Step]:
    action = load(file)
    given = {name: row.get("default", "") for name, row in action["inputs"].items()}
    given |= {name.replace("_", "-"): value for name, value in inputs.items()}
    return {
        step["name"]: Step(
            step["name"], step["run"], step["shell"],
            {name: _INPUT.sub(lambda found: given[found[1]], value) for name, value in step.get("env", {}).items()},
        )
        for step in action["runs"]["steps"] if "run" in step
    }  # fmt: skip


def run_step(
    step: Step, workspace: Path, commands: Path, action: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """One step in a workspace, with the variables that the runner sets and `commands` first in its path."""
    script = workspace.parent / "step.sh"
    script.write_text(step.script)
    runner = {
        "CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(workspace), "GITHUB_EVENT_NAME": "push",
        "GITHUB_REPOSITORY": "somebody/something", "GITHUB_REF": "refs/heads/main", "GITHUB_SHA": "0" * 40,
        "GITHUB_OUTPUT": str(workspace.parent / "output"), "GITHUB_STEP_SUMMARY": str(workspace.parent / "summary"),
        "RUNNER_TEMP": str(workspace.parent), "RUNNER_OS": "Linux",
    } | ({"GITHUB_ACTION_PATH": str(action)} if action else {})  # fmt: skip
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, **runner, "PATH": path}
    environment.pop("COLUMNS", None)
    return subprocess.run(
        [*SHELLS[step.shell], str(script)], cwd=workspace, env=environment | dict(step.env), capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
