"""What is built in to be checked, and why some of it cannot run here."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from rich.text import Text

from ..inputs.options import OPTIONS, command_line
from ..model.case import flag_of
from ..model.failures import Failure
from ..render.rows import folded, headed
from ..targets.builtin import BUILTINS
from ..targets.find import find_target, missing

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
