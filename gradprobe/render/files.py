"""Report files: their forms, and what each holds until its command has finished: valid, and no match.

Written first, so that a killed process leaves no earlier verdict; so this imports next to nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from ..model.writing import IN_JSON, IN_MARKUP, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model.documents import Reports


INCOMPLETE = "incomplete"
_UNFINISHED = "the command did not finish: it is still running, or it was stopped"
ERROR = {"kind": "Incomplete", "message": _UNFINISHED, "way_out": "run it again"}
# With these nothing is run, and no file is written.
_NOTHING_RUNS = {"--help", "-h", "--list"}
_WRONG = ("mismatch", "survived")
_OF_A_FILE = re.compile(r"([\w./-]+\.py):\w+", re.ASCII)


def keeps_changing(file: str) -> bool:
    """Not a stream, which would keep every version."""
    return file != "-" and (os.path.isfile(file) or not os.path.exists(file))


def begin(words: Sequence[str]) -> None:
    """Replaces the report files of a command line, as far as they can be written."""
    flags = FILES.get(words[0], ()) if words else ()
    if not flags or _NOTHING_RUNS & set(own_words(words)):
        return
    for flag, file in files_in(words, flags).items():
        if FORMS[flag].unfinished and keeps_changing(file):
            with contextlib.suppress(OSError, ValueError):
                replace_file(file, _unfinished_text(FORMS[flag].unfinished, words))


def files_in(words: Sequence[str], flags: Sequence[str]) -> dict[str, str]:
    words, found = own_words(words), {}
    for word, following in zip(words, [*words[1:], None], strict=True):
        flag, equals, file = word.partition("=")
        named = file if equals else following
        if flag in flags and not FORMS[flag].unfinished:
            found[flag] = STDERR
        elif flag in flags and named is not None:
            found[flag] = named
    return found


def own_words(words: Sequence[str]) -> Sequence[str]:
    return words[: words.index("--")] if "--" in words else words


def unfinished(document: Mapping[str, Any]) -> dict[str, Any]:
    """No match yet, but a mismatch in it stays one."""
    verdict = document["verdict"] if document["verdict"] in _WRONG else INCOMPLETE
    return {**document, "verdict": verdict, "error": ERROR}


def document(reproduce: str) -> dict[str, Any]:
    return {
        "schema": "gradprobe.report/2", "verdict": INCOMPLETE, "error": ERROR, "runs": [], "first_mismatch": None,
        "diagnoses": [], "reproduce": reproduce,
    }  # fmt: skip


def as_json(several: Reports, code: int | None) -> str:
    from ..model.documents import several_document, text_of

    whole = several_document(several)
    return text_of(unfinished(whole) if code is None else whole)


def _unfinished_text(ending: str, words: Sequence[str]) -> str:
    command = shlex.join(["gradprobe", *words])
    if ending == "json":
        return json.dumps(document(command), indent=2) + "\n"
    named = next(filter(None, map(_OF_A_FILE.fullmatch, own_words(words))), None)
    command = command.replace("&", "&amp;").replace("<", "&lt;")
    known = {"command": command, "file": named[1] if named else "gradprobe", **ERROR}
    file = os.path.join(os.path.dirname(__file__), "templates", f"unfinished.{ending}")
    with open(file, encoding="utf-8") as stream:
        return stream.read() % known


# Where a form goes that has no file of its own.
STDERR = "/dev/stderr"
Form = namedtuple("Form", ["help", "text", "unfinished", "escape"])  # noqa: PYI024 - typing takes long to import
"""`text` is the function of render/ that makes it; `unfinished` the ending of its template, "" without a file."""
FORMS: Mapping[str, Form] = {
    "--json": Form("Write the report as JSON; - for stdout", "files:as_json", "json", IN_JSON),
    "--junit": Form("Write JUnit XML; - for stdout", "junit:text", "xml", IN_MARKUP),
    # A log without results would close the alerts of an earlier run.
    "--sarif": Form("Write SARIF 2.1.0; - for stdout", "sarif:text", "sarif", IN_JSON),
    "--markdown": Form("Write a Markdown table; - for stdout", "github:markdown", "md", IN_MARKUP),
    "--html": Form("Write the report as a page; - for stdout", "page:text", "html", IN_MARKUP),
    "--github": Form("Annotate lines on GitHub, and fill the step's summary", "github:text", "", ""),
}  # fmt: skip


def maker_of(flag: str) -> Callable[[Reports, int | None], str]:
    """What makes a form's text of reports and an exit code; None while the command runs."""
    module, _, name = FORMS[flag].text.partition(":")
    maker: Callable[[Reports, int | None], str]
    maker = getattr(import_module(f"gradprobe.render.{module}"), name)
    return maker


# The commands that write forms, and which.
FILES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("check", "strides", "sweep"), tuple(FORMS)),
    **dict.fromkeys(("diff", "audit"), ("--json", "--html")),
    **dict.fromkeys(("watch", "fix", "shrink", "lint", "mutate", "run", "doctor"), ("--json",)),
}
