"""Writes what `gradprobe init` gives: an adapter, or a workflow that installs the gradprobe that runs here."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from .. import __version__
from ..inputs.options import refuse_unknown_family
from ..model.failures import UsageFailure
from ..model.writing import replace_file
from ..targets.builtin import BUILTINS
from ..targets.find import parts_of

ADAPTER, WORKFLOW = "gradprobe_adapter.py", ".github/workflows/gradprobe.yml"
VENDOR = "vendor"
"""The folder of a user's repository that a wheel of gradprobe goes into, where it has no address."""
# The start of an expression that GitHub evaluates before a shell sees it.
_EXPRESSION = "${{"


def requirement() -> str:
    """What pip installs in a workflow: the commit or the archive that pip recorded here (PEP 610), else a wheel."""
    recorded = _recorded()
    url, vcs = str(recorded.get("url", "")), recorded.get("vcs_info")
    parts = urlsplit(url)
    # Without a name and a password: what is written is committed.
    public = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if vcs:
        return f"gradprobe @ git+{public}@{vcs['commit_id']}"
    if url.startswith("https:"):
        return f"gradprobe @ {public}"
    name = _source(recorded).name
    own = f"gradprobe-{__version__}-py3-none-any.whl"
    return f"{VENDOR}/{name if name.endswith('.whl') else own}"


def wheel_command() -> str:
    """What puts the wheel into VENDOR; "" where the workflow needs none, or it is there."""
    wanted = requirement()
    if not wanted.startswith(VENDOR) or Path(wanted).is_file():
        return ""
    source, checkout = _source(_recorded()), Path(__file__).parents[2]
    found = [source] if source.suffix == ".whl" and source.is_file() else []
    found += [folder for folder in (source, checkout) if (folder / "pyproject.toml").is_file()]
    words = ["python3", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", VENDOR]
    return shlex.join([*words, str(found[0]) if found else "CHECKOUT"])


def _recorded() -> dict[str, Any]:
    """What pip wrote about a package that did not come from an index; nothing where it did, or was not installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        text = metadata.distribution("gradprobe").read_text("direct_url.json")
        return dict(json.loads(text or "{}"))
    return {}


def _source(recorded: dict[str, Any]) -> Path:
    """The file or folder that pip installed from."""
    return Path(unquote(urlsplit(str(recorded.get("url", ""))).path))


def write_workflow(path: Path, ci: str, target: str | None, *, force: bool = False) -> None:
    """Writes a workflow for a target; for None, for the one that pyproject.toml configures, or else the default one.

    Raises:
        UsageFailure: there is no such CI; the target is not in this folder or cannot stand in a workflow; the path is
            no YAML file, cannot be written, or exists without `force`.
    """
    if ci != "github":
        raise UsageFailure(f"--ci must be github, got {ci!r}")
    if path.suffix not in (".yml", ".yaml"):
        raise UsageFailure(f"init --ci writes a YAML file, got {path}", f"for example {WORKFLOW}")
    if target is not None:
        _refuse_outside(target)
    text = (Path(__file__).parent / f"{ci}.yml").read_text(encoding="utf-8")
    words = {"target": target or "", "gradprobe": requirement(), "path": path.as_posix()}
    for name, word in words.items():
        if _EXPRESSION in word or not word.isprintable():
            what = f"{word!r} cannot be written into a workflow"
            raise UsageFailure(f"{what}: GitHub would not read it as one word")
        # A JSON string is a YAML scalar that quotes all that YAML or a shell would read.
        text = text.replace(f"<<{name}>>", json.dumps(word, ensure_ascii=False))
    _write_new(path, text, force=force)


def _refuse_outside(word: str) -> None:
    """Raises UsageFailure for a file that a workflow would not find."""
    place = Path("" if word in BUILTINS else parts_of(word)[0])
    if place.suffix != ".py":
        return
    if place.is_absolute() or ".." in place.parts:
        what = f"--target {word}: a workflow only sees the repository"
        raise UsageFailure(what, "name it from its root")
    if not place.is_file():
        what = f"--target {word}: there is no file {place}"
        raise UsageFailure(what, "the path begins at the repository's root")


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
