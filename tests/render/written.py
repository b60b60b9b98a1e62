"""Report documents as checks wrote them first, small and by hand, and the schemas that their forms are held to."""

import importlib.metadata
import itertools
import json
import sqlite3
from functools import cache
from pathlib import Path
from typing import Any

from gradprobe.model.documents import Reports, report_from
from gradprobe.model.report import Origin, Report
from gradprobe.render.files import maker_of
from gradprobe.render.source_places import Base

FOLDER = Path(__file__).resolve().parents[1] / "schemas"
BASE = Base("/repository", "/repository")
# Every character below U+0020, what XML, JSON and terminals mind, and what they should not.
ODD = (
    "".join(map(chr, range(32)))
    + "]]> <&\"'> \x7f\x85\u2028\ud800\udfff\ufffe\uffff\U0001fffe é 漢 😀 %0A %25 a|b `c` ::x::"
)


def reports(*documents: dict[str, Any]) -> list[Report]:
    """What the documents hold, written as gradprobe.report/1 was."""
    return [report_from(document) for document in documents]


def form(flag: str, *documents: dict[str, Any] | Report, code: int | None = 1) -> str:
    """Reports in one of the forms, as those of a command that ran in BASE."""
    found = [one if isinstance(one, Report) else report_from(one) for one in documents]
    origin = Origin(folder=BASE.here, root=BASE.root, version="0.2.0")
    return maker_of(flag)(Reports(reports=tuple(found), origin=origin), code)


def head(
    number: int, batch: int | None = 0, status: str = "match", **changes: Any
) -> dict[str, Any]:
    wrong = {"mismatched": 9, "max_budget_ratio": 51.0, "rows": [[0, 4], [7, 10]]}
    right = {"mismatched": 0, "max_budget_ratio": 0.25, "rows": []}
    own = right if status == "match" else wrong
    return {"batch": batch, "head": number, "status": status, **own, **changes}


def entry(name: str, *heads: dict[str, Any]) -> dict[str, Any]:
    statuses = [one["status"] for one in heads]
    order = ("mismatch", "inherited", "match")
    status = next((word for word in order if word in statuses), "not exposed")
    return {
        "name": name, "status": status, "source": "exported", "mismatched": sum(one["mismatched"] for one in heads),
        "total": 800, "non_finite": 0, "max_abs_err": 1.0, "heads": list(heads),
        "max_budget_ratio": max((one["max_budget_ratio"] for one in heads), default=None),
    }  # fmt: skip


def invariant(name: str, holds: bool = True, of: str = "target") -> dict[str, Any]:
    residual = 0.5 if holds else 2.5
    return {"name": name, "of": of, "holds": holds, "residual": residual, "budget": 1.0}


def run(layout: str, *entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    statuses = [one["status"] for one in entries]
    identities = changes.get("invariants", ())
    wrong = "mismatch" in statuses or not all(one["holds"] for one in identities)
    return {
        "layout": layout, "verdict": "mismatch" if wrong else "match", "skipped": None, "intermediates": list(entries),
        "first_mismatch": None, "invariants": [], **changes,
    }  # fmt: skip


def refused(layout: str, words: str) -> dict[str, Any]:
    return run(layout, verdict="skipped", skipped=words)


FIRST = {
    "intermediate": "dP", "batch": 0, "head": 1, "row": 0, "col": 3, "tile": [0, 0], "actual": 0.4662,
    "expected": -0.014, "budget": 0.0094, "masked": False,
}  # fmt: skip
FIRST_LINE = "FIRST MISMATCH dP batch=0 head=1 row=0 col=3 tile=0,0 actual=0.4662 expected=-0.014 ratio=51x"
KERNELS = [
    {"name": name, "file": "/repository/kernels/lazy.py", "line": line, "sha256": ""}
    for name, line in (("lazy_forward_kernel", 56), ("lazy_dkdv_kernel", 251))
]


def document(*runs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    verdict = "mismatch" if any(one["verdict"] == "mismatch" for one in runs) else "match"
    first = next((one["first_mismatch"] for one in runs if one["first_mismatch"]), None)
    target = {
        "name": "lazy", "file": "/repository/targets/mine.py", "line": 12, "kernels": KERNELS,
        "backend": "triton",
    }  # fmt: skip
    return {
        "schema": "gradprobe.report/1", "verdict": verdict, "target": target, "runs": list(runs),
        "first_mismatch": first, "diagnoses": [], "reproduce": "gradprobe check lazy", "seconds": {"total": 1.234},
        **changes,
    }  # fmt: skip


def faulty(**changes: Any) -> dict[str, Any]:
    """dP and dV wrong by themselves in head 1 of distinct, dS and dTau inherit, I4 is broken, one layout is refused."""
    wrong = run(
        "distinct", entry("LSE"), entry("dP", head(0), head(1, status="mismatch")),
        entry("dS", head(0), head(1, status="inherited", max_budget_ratio=900.0)),
        entry("dV", head(0), head(1, status="mismatch", max_budget_ratio=3e8)),
        entry("dTau", head(0, None), head(1, None, "inherited")), first_mismatch=FIRST,
        invariants=[invariant("I2 sum_j dK = 0"), invariant("I4 <V, dV> = <O, dO>", False)],
    )  # fmt: skip
    right = run("contiguous", *(entry(name, head(0), head(1)) for name in ("dP", "dS", "dV")))
    skipped = refused("do=expanded", "AssertionError: do must be contiguous")
    return document(right, wrong, skipped, **changes)


def failed(
    kind: str = "UsageFailure",
    message: str = "--heads must be at least 1, got 0",
    **changes: Any,
) -> dict[str, Any]:
    return {
        "schema": "gradprobe.report/1", "verdict": "error", "runs": [], "first_mismatch": None, "diagnoses": [],
        "error": {"kind": kind, "message": message, "way_out": "give at least one"},
        "reproduce": "gradprobe check --heads 0", **changes,
    }  # fmt: skip


def with_memory(*kinds: str) -> dict[str, Any]:
    findings = [
        {
            "kind": kind, "tensor": "do", "kernel": "lazy_dkdv_kernel", "file": "/repository/kernels/lazy.py",
            "line": 270 + at, "code": "tl.load(do_ptrs)", "sentence": f"{kind}: 3 elements before do, program 0,1",
        }
        for at, kind in enumerate(kinds)
    ]  # fmt: skip
    right = run("contiguous", entry("dP", head(0)))
    return document(right, verdict="mismatch", strides={"findings": findings})


def many_heads(heads: int = 128, batches: int = 2) -> dict[str, Any]:
    entries = []
    for name in ("LSE", "P", "O", "dP", "delta", "dS", "dQ", "dK", "dV"):
        status = "mismatch" if name == "dP" else "inherited"
        numbers = itertools.product(range(batches), range(heads))
        entries.append(entry(name, *(head(h, b, status) for b, h in numbers)))
    layouts = ("contiguous", "distinct", "do=expanded")
    return document(*(run(layout, *entries, first_mismatch=FIRST) for layout in layouts))


@cache
def junit_schema() -> Any:
    from lxml import etree

    return etree.XMLSchema(etree.parse(FOLDER / "junit-10.xsd"))


def read_junit(text: str) -> Any:
    """The root of JUnit XML, which Jenkins' schema takes."""
    from lxml import etree

    root = etree.fromstring(text.encode())
    junit_schema().assertValid(root)
    return root


@cache
def sarif_schema() -> Any:
    """The schema that OASIS publishes, out of the store of schemas that a package ships."""
    title = b"Static Analysis Results Format (SARIF) Version 2.1.0 JSON Schema"
    package = importlib.metadata.distribution("schemastore")
    store = Path(str(package.locate_file("schemastore/cache.sqlite")))
    with sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True) as database:
        query = "SELECT value FROM responses WHERE instr(value, ?)"
        (response,) = database.execute(query, (title,)).fetchone()
    database.close()
    text = response[response.index(b'{\r\n  "$schema"') :].decode("utf-8", "replace")
    schema, _ = json.JSONDecoder().raw_decode(text)
    assert schema["$id"].endswith("sarif-spec/master/Schemata/sarif-schema-2.1.0.json")
    return schema


def assert_is_sarif(log: dict[str, Any]) -> None:
    """SARIF's own schema takes the log, as it comes back from its text."""
    import jsonschema

    kind = jsonschema.Draft7Validator
    validator = kind(sarif_schema(), format_checker=kind.FORMAT_CHECKER)
    found = validator.iter_errors(json.loads(json.dumps(log)))
    assert [f"{list(error.path)}: {error.message}" for error in found] == []
