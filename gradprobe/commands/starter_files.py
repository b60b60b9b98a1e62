"""Writes what `gradprobe init` gives: an adapter, or a workflow that installs the gradprobe that runs here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
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

VENDOR = "vendor"
"""The folder of a user's repository that a wheel of gradprobe goes into, where it has no address."""


def requirement() -> str:
    """What pip installs in a workflow: the commit or the archive that pip recorded here (PEP 610), else a wheel.

    Of a folder it is the commit that is checked out there, at its remote `origin`. The wheel lies in VENDOR.
    """
    recorded = _recorded()
    url, vcs = str(recorded.get("url", "")), recorded.get("vcs_info")
    if vcs:
        return _at_commit(url, str(vcs["commit_id"]))
    if url.startswith("https:"):
        return f"gradprobe @ {_without_user(url)}"
    folder = unquote(urlsplit(url).path)
    remote, commit = (
        _git(folder, "remote", "get-url", "origin"),
        _git(folder, "rev-parse", "HEAD"),
    )
    web = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", remote)
    return (
        _at_commit(web, commit)
        if web.startswith("https:") and commit
        else f"{VENDOR}/{_wheel(url)}"
    )


def _wheel(url: str) -> str:
    """The name of the wheel that pip installed from, else of the one that it makes of this version."""
    name = Path(unquote(urlsplit(url).path)).name
    return name if name.endswith(".whl") else f"gradprobe-{__version__}-py3-none-any.whl"


def wheel_command() -> str:
    """What puts the wheel into VENDOR; "" where the workflow needs none, or it is there."""
    wanted = requirement()
    if not wanted.endswith(".whl") or not wanted.startswith(VENDOR) or Path(wanted).is_file():
        return ""
    source = Path(unquote(urlsplit(str(_recorded().get("url", ""))).path))
    if source.suffix == ".whl" and source.is_file():
        return f"mkdir -p {VENDOR} && cp {shlex.quote(str(source))} {VENDOR}"
    folders = (source, Path(__file__).parents[2])
    checkout = next(
        (str(folder) for folder in folders if (folder / "pyproject.toml").is_file()), "CHECKOUT"
    )
    return f"python3 -m pip wheel --no-deps --wheel-dir {VENDOR} {shlex.quote(checkout)}"


def _recorded() -> dict[str, Any]:
    """What pip wrote about a package that did not come from an index; nothing where it did, or was not installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return dict(
            json.loads(metadata.distribution("gradprobe").read_text("direct_url.json") or "{}")
        )
    return {}


def _at_commit(url: str, commit: str) -> str:
    return f"gradprobe @ git+{_without_user(url)}@{commit}"


def _without_user(url: str) -> str:
    """A URL without a name and a password: what is written is committed."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _git(folder: str, *words: str) -> str:
    """What git prints about a folder; nothing where it fails or is not there."""
    if not folder:
        return ""
    try:
        ran = subprocess.run(
            ["git", "-C", folder, *words], check=False, capture_output=True, encoding="utf-8"
        )
    except OSError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


CIS = ("github",)
DEFAULT_CI = ".github/workflows/gradprobe.yml"
# The start of an expression that GitHub evaluates before a shell sees it.
_EXPRESSION = "${{"


def write_workflow(path: Path, ci: str, target: str | None, *, force: bool = False) -> None:
    """Writes a workflow for a target; for None, for the one that pyproject.toml configures, or else the default one.

    Raises:
        UsageFailure: there is no such CI; the target is not in this folder or cannot stand in a workflow; the path is
            no YAML file, cannot be written, or exists without `force`.
    """
    if ci not in CIS:
        raise UsageFailure(f"--ci must be {' or '.join(CIS)}, got {ci!r}")
    if path.suffix not in (".yml", ".yaml"):
        raise UsageFailure(
            f"init --ci writes a YAML file, got {path}", f"for example {DEFAULT_CI}"
        )
    if target is not None:
        _check_target(target)
    text = (Path(__file__).parent / f"{ci}.yml").read_text(encoding="utf-8")
    words = {"target": target or "", "gradprobe": requirement(), "path": path.as_posix()}
    for name, word in words.items():
        if _EXPRESSION in word or not word.isprintable():
            raise UsageFailure(
                f"{word!r} cannot be written into a workflow: GitHub would not read it as one word"
            )
        # A JSON string is a YAML scalar that quotes all that YAML or a shell would read.
        text = text.replace(f"<<{name}>>", json.dumps(word, ensure_ascii=False))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageFailure(f"{path.parent}: cannot be made, {error.strerror}") from error
    _write_new(path, text, force=force)


def _check_target(word: str) -> None:
    place = Path("" if word in BUILTINS else parts_of(word)[0])
    if place.suffix == ".py" and (place.is_absolute() or ".." in place.parts):
        raise UsageFailure(
            f"--target {word}: a workflow only sees the repository", "name it from its root"
        )
    if place.suffix == ".py" and not place.is_file():
        raise UsageFailure(
            f"--target {word}: there is no file {place}",
            "the path begins at the repository's root",
        )


DEFAULT_TEMPLATE = "gradprobe_adapter.py"


def write_adapter(path: Path, family: str, *, force: bool = False) -> None:
    """Writes an adapter that runs as it is, with functions `backward` and `forward`.

    Raises:
        UsageFailure: there is no such family; the path is no Python file, cannot be written, or exists without `force`.
    """
    refuse_unknown_family(family)
    if path.suffix != ".py":
        raise UsageFailure(
            f"init writes a Python file, got {path}", f"for example {path / DEFAULT_TEMPLATE}"
        )
    text = (Path(__file__).parents[1] / "targets" / "templates" / f"{family}.py").read_text(
        encoding="utf-8"
    )
    _write_new(path, text, force=force)


def _write_new(path: Path, text: str, *, force: bool) -> None:
    """Writes a new file; with `force`, also over one that exists.

    Raises:
        UsageFailure: it exists without `force`, or cannot be written.
    """
    try:
        if os.path.lexists(path) and not force:
            raise FileExistsError
        replace_file(path, text)
    except FileExistsError:
        raise UsageFailure(
            f"{path} already exists", "name another file, or write over it with --force"
        ) from None
    except OSError as error:
        raise UsageFailure(f"{path}: cannot be written, {error.strerror}") from error
