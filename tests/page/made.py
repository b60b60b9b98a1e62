"""Pages of reports that were saved, and of what is put together from them; `python -m tests.page.made` saves them anew.

As a command it runs `gradprobe` on examples/delta.py, and keeps what it wrote without fields that hold their defaults.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import structs

from gradprobe.model.documents import FailureGroup, Reports, load, report_from
from gradprobe.model.report import Report
from gradprobe.render.page import page_of, page_of_comparison, text
from tests.render.written import document, entry, head, many_heads, run

SAVED = Path(__file__).with_name("saved")
ROOT = Path(__file__).resolve().parents[2]
CASE = "examples/delta.py:delta --batch 1 --heads 2 --seqlen 16"
COMMANDS = {"check": f"check {CASE}", "strides": f"strides {CASE} --fast"}
EMPTY = ("", [], {}, 0, None, False)


def saved(name: str) -> Report:
    """The report of a command of COMMANDS."""
    return load((SAVED / f"{name}.json").read_text())


def right() -> Report:
    """A right kernel's."""
    return report_from(
        document(
            run(
                "contiguous", *(entry(name, head(0), head(1)) for name in ("P", "dP", "dS", "dQ"))
            )
        )
    )


def several() -> Reports:
    """Four checks of two axes; two of them fail for one reason."""
    wrong, fine = saved("check"), right()
    assert wrong.case is not None
    made = []
    for number, (heads, dtype) in enumerate(product((1, 2), ("float32", "float16")), 1):
        report = wrong if heads == 2 else structs.replace(fine, target=wrong.target)
        case = replace(wrong.case, heads=heads, dtype=dtype)
        made.append(structs.replace(report, title=f"H={heads} {dtype}", number=number, case=case))
    titles = tuple(report.title for report in made[2:])
    group = FailureGroup(
        verdict="mismatch", cause="stride/do-head at delta.py:19", summary="dO is read with O's head stride",
        titles=titles, numbers=(3, 4), common=("all 2 failures have H = 2, no match has it",), shrunk=wrong,
    )  # fmt: skip
    return Reports(reports=tuple(made), planned=4, groups=(group,))


def heads_128() -> Report:
    """A kernel that is wrong in every head of 128."""
    return report_from(many_heads(128, 1))


def pages() -> Mapping[str, str]:
    """Every kind of page, by its name."""
    wrong = saved("check")
    return {
        "wrong": page_of(wrong),
        "right": page_of(right()),
        "heads-128": page_of(heads_128()),
        "strides": page_of(saved("strides")),
        "several": text(several(), 1),
        "comparison": page_of_comparison(Reports(reports=(right(),)), Reports(reports=(wrong,))),
    }


def _names(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from (name for name, value in part.items() if value in EMPTY)
        yield from (name for value in part.values() for name in _names(value))
    elif isinstance(part, list):
        yield from (name for value in part for name in _names(value))


def _without(part: Any, name: str) -> Any:
    if isinstance(part, dict):
        return {
            key: _without(value, name)
            for key, value in part.items()
            if key != name or value not in EMPTY
        }
    return [_without(value, name) for value in part] if isinstance(part, list) else part


def _is_whole(text: str, whole: Report) -> bool:
    try:
        return load(text) == whole
    except Exception:
        return False


def shortened(text: str) -> str:
    """A document without the fields that are the same where they are not there."""
    whole = load(text)
    for name in sorted(set(_names(json.loads(text)))):
        less = json.dumps(_without(json.loads(text), name), separators=(",", ":"))
        text = less if _is_whole(less, whole) else text
    return text + "\n"


if __name__ == "__main__":
    for name, words in COMMANDS.items():
        file = SAVED / f"{name}.json"
        subprocess.run(["gradprobe", *words.split(), "--json", str(file)], cwd=ROOT, check=False)
        file.write_text(shortened(file.read_text().replace(str(ROOT), "/work")))
