"""What pip installs on another machine to get the gradprobe that runs here."""

from __future__ import annotations

import json
import re
import subprocess
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from .. import __version__


def requirement() -> str:
    """The release where it came from an index; else the commit or the archive that pip recorded (PEP 610).

    Of a folder it is the commit that is checked out there, at its remote `origin`, and the release where it has none.
    """
    recorded = _recorded()
    url, vcs = str(recorded.get("url", "")), recorded.get("vcs_info")
    if vcs:
        return _at_commit(url, str(vcs["commit_id"]))
    if url.startswith("https:"):
        return f"gradprobe @ {_without_user(url)}"
    folder = urlsplit(url).path
    remote, commit = _git(folder, "remote", "get-url", "origin"), _git(folder, "rev-parse", "HEAD")
    web = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", remote)
    return _at_commit(web, commit) if web.startswith("https:") and commit else f"gradprobe=={__version__}"


def _recorded() -> dict[str, Any]:
    """What pip wrote about a package that did not come from an index; nothing where it did, or was not installed."""
    try:
        text = metadata.distribution("gradprobe").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, Any] = json.loads(text or "{}")
    return found


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
        ran = subprocess.run(["git", "-C", folder, *words], check=False, capture_output=True, encoding="utf-8")
    except OSError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""
