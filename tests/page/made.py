"""Pages of reports that were saved, and of what is put together from them; `python -m tests.page.made` saves them anew.

As a command it runs `gradprobe` on examples/delta.py, and keeps what it wrote without fields that hold their defaults.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from gradprobe.model.documents import FailureGroup, Reports, load, report_from
from gradprobe.model.heads import ABOUT, PARTS, Evidence, KeptHeads, WholeHead
from gradprobe.model.layout_run import Intermediate
from gradprobe.model.report import Report
from gradprobe.render.page.page import page_of, page_of_comparison, text
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
        document(run("contiguous", *(entry(name, head(0), head(1)) for name in ("P", "dP", "dS", "dQ"))))
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


def seen_in_kernels(*kernels: str) -> Report:
    """P, dP, delta and dS as they were seen in each of these kernels, P wrong, between O and the gradients."""
    inside = [
        structs.replace(part, kernel=kernel) for kernel in kernels for part in _compared("P", "dP", "delta", "dS")
    ]
    report = report_from(document(run("contiguous", entry("LSE"), entry("O", head(0), head(1)))))
    (only,) = report.runs
    parts = (*only.intermediates, *inside, *_compared("dQ", "dK", "dV"))
    return structs.replace(report, runs=(structs.replace(only, intermediates=parts),))


def _compared(*names: str) -> tuple[Intermediate, ...]:
    """Those of two heads, of which P is wrong by itself and what is made of it inherits."""
    states = {"P": "mismatch", "dP": "match", "delta": "match"}
    parts = [entry(name, *(_far_off(at, states.get(name, "inherited")) for at in (0, 1))) for name in names]
    return report_from(document(run("contiguous", *parts))).runs[0].intermediates


def _far_off(number: int, status: str) -> dict[str, Any]:
    return head(number, status=status, **({} if status == "match" else {"max_budget_ratio": 89_666.0}))


def heads_128() -> Report:
    """A kernel that is wrong in every head of 128."""
    return report_from(many_heads(128, 1))


def with_evidence(file: Path) -> Report:
    """The failing check, of which a head of drawn values is kept in a file: some are wrong, one is NaN."""
    report, draw = saved("check"), np.random.default_rng(0)
    expected = draw.normal(size=(16, 24)) * 10.0 ** draw.integers(-6, 7, (16, 24))
    wrong, budget = draw.random((16, 24)) < 0.3, np.abs(expected) * 1e-6
    actual = (expected + budget * np.where(wrong, 40.0, 0.1)).astype(np.float32)
    actual[3, 4], wrong[3, 4] = np.nan, True
    one = WholeHead(intermediate="delta", batch=0, head=1, shape=(16, 24))
    about = KeptHeads(command="", layout=report.shown.layout, heads=(one,))
    named = zip(PARTS, (actual, expected, budget, wrong), strict=True)
    arrays = {f"{one.key}.{part}": values for part, values in named}
    np.savez(file, **{ABOUT: np.array(msgspec.json.encode(about).decode())}, **arrays)
    known = Evidence(file=str(file), sha256=hashlib.sha256(file.read_bytes()).hexdigest(), heads=1)

    def tiled(part: Intermediate) -> Intermediate:
        heads = tuple(structs.replace(head, tiles=("zz", "zz")) for head in part.heads)
        return structs.replace(part, tile=(8, 16), heads=heads)

    runs = tuple(structs.replace(run, intermediates=tuple(map(tiled, run.intermediates))) for run in report.runs)
    return structs.replace(report, evidence=known, runs=runs)


def pages(folder: Path) -> Mapping[str, str]:
    """Every kind of page, by its name; what they are made of beside reports goes into a folder."""
    wrong = saved("check")
    return {
        "wrong": page_of(wrong),
        "evidence": page_of(with_evidence(folder / "heads.npz"), str(folder / "heads.npz")),
        "right": page_of(right()),
        "heads-128": page_of(heads_128()),
        "kernel": page_of(seen_in_kernels("_flash_attn_bwd_kernel")),
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
        return {key: _without(value, name) for key, value in part.items() if key != name or value not in EMPTY}
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
