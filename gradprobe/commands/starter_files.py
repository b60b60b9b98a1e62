"""Writes what `gradprobe init` gives: an adapter, or a workflow."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

from .. import __version__
from ..inputs.options import refuse_unknown_family
from ..model.failures import UsageFailure
from ..model.writing import replace_file
from ..targets.builtin import BUILTINS
from ..targets.find import parts_of

ADAPTER, WORKFLOW = "gradprobe_adapter.py", ".github/workflows/gradprobe.yml"
VENDOR = "vendor"
"""The folder of a user's repository that a wheel of gradprobe goes into: it is on no index."""
WHEEL = f"{VENDOR}/gradprobe-{__version__}-py3-none-any.whl"


def wheel_command() -> str:
    """What puts the wheel into VENDOR; "" where it is there."""
    if Path(WHEEL).is_file():
        return ""
    checkout = Path(__file__).parents[2]
    source = str(checkout) if (checkout / "pyproject.toml").is_file() else "CHECKOUT"
    words = ["python3", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", VENDOR, source]
    return shlex.join(words)


def write_workflow(path: Path, ci: str, target: str | None, *, force: bool = False) -> None:
    """Writes a workflow for a target; for None, for what pyproject.toml configures, or else the default one.

    Raises:
        UsageFailure: there is no such CI; the target is not in this folder or cannot stand in a workflow; the path is
            no YAML file, cannot be written, or exists without `force`.
    """
    if ci != "github":
        raise UsageFailure(f"--ci must be github, got {ci!r}")
    if path.suffix not in (".yml", ".yaml"):
        raise UsageFailure(
            f"init --ci writes a YAML file, got {path}", f"for example {WORKFLOW}"
        )
    if target is not None:
        _refuse_outside(target)
    text = (Path(__file__).parent / f"{ci}.yml").read_text(encoding="utf-8")
    words = {"target": target or "", "gradprobe": WHEEL, "path": path.as_posix()}
    for name, word in words.items():
        # What GitHub evaluates before a shell sees it.
        if "${{" in word or not word.isprintable():
            what = f"{word!r} cannot be written into a workflow"
            raise UsageFailure(f"{what}: GitHub would not read it as one word")
        # A JSON string is a YAML scalar that quotes all that YAML or a shell would read.
        text = text.replace(f"<<{name}>>", json.dumps(word, ensure_ascii=False))
    _write_new(path, text, force=force)


def _refuse_outside(word: str) -> None:
    place = Path("" if word in BUILTINS else parts_of(word)[0])
    is_outside = place.is_absolute() or ".." in place.parts
    if place.suffix == ".py" and (is_outside or not place.is_file()):
        what = f"--target {word}: a workflow sees no file {place} in the repository"
        raise UsageFailure(what, "name it from the repository's root")


def write_adapter(path: Path, family: str, *, force: bool = False) -> None:
    """Writes an adapter that runs as it is, with functions `backward` and `forward`. Raises UsageFailure."""
    refuse_unknown_family(family)
    if path.suffix != ".py":
        way_out = f"for example {path / ADAPTER}"
        raise UsageFailure(f"init writes a Python file, got {path}", way_out)
    template = Path(__file__).parents[1] / "targets" / "templates" / f"{family}.py"
    _write_new(path, template.read_text(encoding="utf-8"), force=force)


def _write_new(path: Path, text: str, *, force: bool) -> None:
    if os.path.lexists(path) and not force:
        way_out = "name another file, or write over it with --force"
        raise UsageFailure(f"{path} already exists", way_out)
    try:
        if path.suffix != ".py":
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise UsageFailure(f"{path}: cannot be written, {error.strerror}") from error
