"""Pages of saved reports, and of what is put together from them; `python -m tests.page.made` saves them anew."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

from msgspec import structs

from gradprobe.model.documents import FailureGroup, Reports, load, report_from
from gradprobe.model.report import Report
from gradprobe.render.page import text
from tests.render.written import document, entry, head, many_heads, run

SAVED = Path(__file__).with_name("saved")
ROOT = Path(__file__).resolve().parents[2]
CASE = "examples/delta.py:delta --batch 1 --heads 2 --seqlen 16"
COMMANDS = {"check": f"check {CASE}", "strides": f"strides {CASE} --fast"}


def saved(name: str) -> Report:
    return load((SAVED / f"{name}.json").read_text())


def right() -> Report:
    entries = (entry(name, head(0), head(1)) for name in ("P", "dP", "dS", "dQ"))
    return report_from(document(run("contiguous", *entries)))


def several() -> Reports:
    """Four checks of two axes; two of them fail for one reason."""
    wrong, fine = saved("check"), right()
    assert wrong.case is not None
    made = []
    for number, (heads, dtype) in enumerate(product((1, 2), ("float32", "float16")), 1):
        report = wrong if heads == 2 else structs.replace(fine, target=wrong.target)
        case = replace(wrong.case, heads=heads, dtype=dtype)
        made.append(
            structs.replace(report, title=f"H={heads} {dtype}", number=number, case=case)
        )
    titles = tuple(report.title for report in made[2:])
    group = FailureGroup(
        verdict="mismatch", cause="stride/do-head at delta.py:19", summary="dO is read with O's head stride",
        titles=titles, numbers=(3, 4), common=("all 2 failures have H = 2, no match has it",), shrunk=wrong,
    )  # fmt: skip
    return Reports(reports=tuple(made), planned=4, groups=(group,))


def page_of(report: Report) -> str:
    return text(Reports(reports=(report,)), 1)


def pages() -> Mapping[str, str]:
    """Every kind of page, by its name: the third is wrong in every head of 128."""
    return {
        "wrong": page_of(saved("check")),
        "right": page_of(right()),
        "heads-128": page_of(report_from(many_heads(128, 1))),
        "strides": page_of(saved("strides")),
        "several": text(several(), 1),
    }


if __name__ == "__main__":
    for name, words in COMMANDS.items():
        file = SAVED / f"{name}.json"
        subprocess.run(["gradprobe", *words.split(), "--json", str(file)], cwd=ROOT, check=False)
        document = json.loads(file.read_text().replace(str(ROOT), "/work"))
        file.write_text(json.dumps(document, separators=(",", ":")) + "\n")
