"""The JSON report keeps contract's keys and types, holds no NaN, and repeats itself by its own command line."""

import hashlib
import json
import math
import shlex
from pathlib import Path

import pytest

from tests.cli.command import SMALL, run

NUMBER = (int, float)
FAILING = f"check soft.py:wrong_delta {SMALL}"

pytestmark = pytest.mark.usefixtures("made_once")


def report_of(words):
    ran = run(f"{words} --json -")
    return json.loads(ran.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def assert_types(value, form):
    """A value against a form: a type, a tuple of types, a set of values, [form of each item] or {key: form}."""
    if isinstance(form, dict):
        assert isinstance(value, dict)
        assert value.keys() >= form.keys(), form.keys() - value.keys()
        for key, inner in form.items():
            assert_types(value[key], inner)
    elif isinstance(form, list):
        assert isinstance(value, list)
        for item in value:
            assert_types(item, form[0])
    elif isinstance(form, set):
        assert value in form
    else:
        assert isinstance(value, form)
        assert not isinstance(value, bool) or form in (bool, (bool, type(None)))


NONE = type(None)
PLACE = {
    "intermediate": str, "batch": (int, NONE), "head": int, "row": (int, NONE), "col": (int, NONE),
    "tile": [(int, NONE)], "actual": (*NUMBER, NONE), "expected": NUMBER, "budget": NUMBER,
    "masked": (bool, NONE),
}  # fmt: skip
HEAD = {
    "batch": (int, NONE), "head": int, "status": {"match", "inherited", "mismatch"}, "mismatched": int,
    "max_budget_ratio": (*NUMBER, NONE), "rows": [[int]],
}  # fmt: skip
FINDING = {
    "name": str, "status": {"match", "inherited", "mismatch"}, "source": {"exported", "tapped", "seen", "recovered"},
    "mismatched": int, "total": int, "non_finite": int, "max_abs_err": (*NUMBER, NONE),
    "max_budget_ratio": (*NUMBER, NONE), "heads": [HEAD],
}  # fmt: skip
COMPARED = {"heads": int, "rows": int, "elements": int, "intermediates": int}
RUN = {
    "layout": str, "verdict": {"match", "mismatch", "skipped"}, "skipped": (str, NONE), "compared": COMPARED,
    "invariants": [{"name": str, "holds": bool, "residual": (*NUMBER, NONE), "budget": (*NUMBER, NONE)}],
}  # fmt: skip
REPORT = {
    "schema": {"gradprobe.report/2"},
    "verdict": {"match", "mismatch"},
    "target": {
        "name": str, "family": {"softmax", "lazy"}, "backend": {"triton", "triton-interpreter", "torch"},
        "file": str, "line": int, "sha256": str, "shadows": [str],
    },
    "environment": {"torch": str, "triton": str, "device": str},
    "case": {
        "family": str, "batch": int, "heads": int, "kv_heads": int, "seqlen_q": int, "seqlen_k": int, "head_dim": int,
        "head_dim_v": int, "dtype": str, "causal": bool, "scale": float, "bias": bool, "seed": int, "device": {"cpu"},
        "layouts": [str], "block_m": int, "block_n": int, "pattern": str, "dots": str, "repeat": int,
    },
    "runs": [RUN],
    "diagnoses": list,
    "reproduce": str,
    "seconds": dict.fromkeys(("import", "target", "reference", "compare", "diagnose", "total"), NUMBER),
}  # fmt: skip


@pytest.mark.parametrize("words", [FAILING, f"check lazily.py:backward {SMALL}"])
def test_a_report_has_every_key_of_the_contract_with_its_type(words):
    report = report_of(words)
    assert_types(report, REPORT)
    for each in report["runs"]:
        exposed = [found for found in each["intermediates"] if found["status"] != "not exposed"]
        assert exposed
        assert_types(exposed, [FINDING])
    if report["verdict"] == "mismatch":
        assert_types(report["first_mismatch"], PLACE)
        assert report["first_mismatch"] == report["runs"][0]["first_mismatch"]
    else:
        assert report["first_mismatch"] is None
        assert report["diagnoses"] == []
        assert [each["first_mismatch"] for each in report["runs"]] == [None, None, None]
    target = report["target"]
    source = Path(target["file"]).read_bytes()
    assert source.decode().splitlines()[target["line"] - 1].startswith("def ")
    assert target["sha256"] == hashlib.sha256(source).hexdigest()
    assert (target["backend"], target["shadows"]) == ("torch", [])


def test_two_nans_and_an_infinity_are_words_and_counted():
    report = report_of(f"check soft.py:nan_in_dk {SMALL}")
    assert report["verdict"] == "mismatch"
    dk = next(found for found in report["runs"][0]["intermediates"] if found["name"] == "dK")
    assert (dk["mismatched"], dk["non_finite"], dk["max_budget_ratio"]) == (2, 2, "Infinity")
    assert math.isfinite(dk["max_abs_err"])
    first = report["first_mismatch"]
    assert (first["intermediate"], first["head"], first["row"], first["col"]) == ("dK", 1, 3, 2)
    assert first["actual"] == "NaN"
    assert math.isfinite(first["expected"])
    report = report_of(f"check soft.py:infinite_dq {SMALL}")
    dq = next(found for found in report["runs"][0]["intermediates"] if found["name"] == "dQ")
    assert (dq["mismatched"], dq["non_finite"], dq["max_budget_ratio"]) == (1, 1, "Infinity")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (
            f"check soft.py:doubled_dq {SMALL} --seed 5 --layout all=distinct --layout do=expanded",
            1,
        ),
        (
            f"check soft.py:backward {SMALL} --family softmax --reference soft.py:backward --window -1,0",
            2,
        ),
    ],
)
def test_the_command_line_in_the_report_repeats_the_run(words, code):
    first = run(f"{words} --json -")
    once = json.loads(first.out)
    assert once["reproduce"].startswith("gradprobe ")
    second = run(shlex.join(shlex.split(once["reproduce"])[1:]) + " --json -")
    again = json.loads(second.out)
    once.pop("seconds", None)
    again.pop("seconds", None)
    assert (first.code, second.code) == (code, code)
    assert again == once
