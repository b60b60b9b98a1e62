"""What `gradprobe init` gives: an adapter, a workflow, or a list of what is built in."""

import contextlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.text import Text

from .. import __version__
from ..inputs.options import OPTIONS, command_line, refuse_unknown_family
from ..model.case import flag_of
from ..model.failures import Failure, UsageFailure
from ..model.writing import replace_file
from ..render.rows import folded, headed
from ..targets.builtin import BUILTINS
from ..targets.find import find_target, missing, parts_of

ADAPTER, WORKFLOW = "gradprobe_adapter.py", ".github/workflows/gradprobe.yml"
VENDOR = "vendor"
"""The folder of a user's repository that a wheel of gradprobe goes into: it is on no index."""
WHEEL = f"{VENDOR}/gradprobe-{__version__}-py3-none-any.whl"


def wheel_command() -> str:
    if Path(WHEEL).is_file():
        return ""
    checkout = Path(__file__).parents[2]
    source = str(checkout) if (checkout / "pyproject.toml").is_file() else "CHECKOUT"
    words = ["python3", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", VENDOR, source]
    return shlex.join(words)


def write_workflow(path: Path, ci: str, target: str | None, *, force: bool = False) -> None:
    """Writes a workflow for a target; for None, for what pyproject.toml configures, or else the default one.

    UsageFailure: there is no such CI; the target is not in this folder or cannot stand in a workflow; the path is no
    YAML file, cannot be written, or exists without `force`.
    """
    if ci != "github":
        raise UsageFailure(f"--ci must be github, got {ci!r}")
    if path.suffix not in (".yml", ".yaml"):
        way_out = f"for example {WORKFLOW}"
        raise UsageFailure(f"init --ci writes a YAML file, got {path}", way_out)
    place = Path(parts_of(target)[0] if target and target not in BUILTINS else "")
    is_inside = place.is_file() and not place.is_absolute() and ".." not in place.parts
    if place.suffix == ".py" and not is_inside:
        what = f"--target {target}: a workflow sees no file {place} in the repository"
        raise UsageFailure(what, "name it from the repository's root")
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


_OWN = (
    "A function of your own is FILE.py:FUNCTION or MODULE:FUNCTION. One that takes dO is a backward and returns a dict "
    "of intermediates; any other is a forward and returns O. gradprobe init writes a first one of each."
)
# What a parameter lets be asked for under another name. A target is given dropout's mask, and draws none itself.
_OPTION_OF = {"cu_seqlens_q": "cu_seqlens", "keep": "dropout", "dropout": None}


def listed_targets() -> list[dict[str, Any]]:
    """Every built-in target: what it is and exposes, and unless it is refused here what it takes, by its options."""
    from ..runtime.backend import prepare_backend

    prepare_backend("auto")  # which says whether Triton interprets, before a file imports it
    with contextlib.redirect_stdout(sys.stderr):
        return list(map(_listed, BUILTINS))


def _listed(name: str) -> dict[str, Any]:
    row = BUILTINS[name]
    found = {"name": name, "summary": row.summary, "exposes": row.exposes, "refused": ""}
    try:
        target = find_target(name)
    except Failure as failure:
        return found | {"refused": missing(row) or str(failure)}
    names = _OPTION_OF | ({"window": "bias_window"} if target.family == "lazy" else {})
    taken = {names.get(parameter, parameter) for parameter in target.takes}
    return found | {
        "command": command_line("check", name, {}),
        "family": target.family,
        "is_backward": target.is_backward,
        "takes": [option.name for option in OPTIONS if option.name in taken],
        "file": target.source.file,
        "line": target.source.line,
    }


def render_targets(listed: list[dict[str, Any]], width: int) -> list[Text]:
    """What can be checked, with the words to type, and why the rest cannot; folded to `width`."""
    lines = list[Text]()
    for row in listed:
        facts = {"": row["summary"], "not here": row["refused"]}
        if not row["refused"]:
            kind = "backward" if row["is_backward"] else "forward through autograd"
            place = f"{os.path.basename(row['file'])}:{row['line']}"
            facts |= {"family": f"{row['family']}, a {kind}, {place}"}
            facts |= {"takes": " ".join(map(flag_of, row["takes"]))}
        facts |= {"exposes": " ".join(row["exposes"])}
        style = "dim" if row["refused"] else "bold"
        lines.append(Text(row.get("command", row["name"]), style))
        for label, words in facts.items():
            lines += headed(f"  {label:<9}", "dim", words, width) if words else []
        lines.append(Text())
    return [*lines, *folded(_OWN, width)]
