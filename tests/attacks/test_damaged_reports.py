"""A damaged report, journal or baseline is exit 2, and the message says what is wrong where."""

import json
import os
import random

import pytest

from gradprobe.commands.suite.journal import SCHEMA
from tests.attacks.conftest import CASE
from tests.cli.command import run
from tests.sampling import sampled


@pytest.fixture(scope="module")
def right(failing_folder):
    """The text of the report of a mismatch, and that of its close-up, which has numbers of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(failing_folder)
        assert run(f"diff delta {CASE} --json close.json").code == 1
    return [(failing_folder / name).read_text() for name in ("right.json", "close.json")]


def refused(words, *, says):
    ran = run(words)
    assert (ran.code, ran.out) == (2, ""), ran
    assert ran.err.startswith("gradprobe: ")
    assert says in ran.err, ran.err
    assert "itself failed" not in ran.err
    return ran.err


# The text of what is no report, of the text of one, and what is said of it.
TEXTS = {
    "empty": (lambda _: "", "no JSON: Expecting value: line 1 column 1"),
    "twice": (lambda text: text * 2, "no JSON: Extra data"),
    "a list": (lambda text: f"[{text}]", "got a JSON list"),
    "null": (lambda _: "null", "got a JSON NoneType"),
    "an empty object": (lambda _: "{}", "got None"),
    "deep lists": (lambda _: "[" * 100_000, "no JSON"),
    "deep objects": (lambda text: text.replace("{", '{"x":' * 50_000 + "{", 1), "no JSON"),
    "many digits": (lambda text: text.replace("1,", "1" * 5000 + ",", 1), "no JSON"),
    "NaN": (lambda text: text.replace('"seconds": {', '"seconds": {"x": NaN, ', 1), "NaN is no number of JSON"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_that_is_no_report(right, tmp_path, kind):
    damage, says = TEXTS[kind]
    (tmp_path / "x.json").write_text(damage(right[0]))
    assert "x.json" in refused(["show", str(tmp_path / "x.json")], says=says)
    (tmp_path / "right.json").write_text(right[0])
    both = [str(tmp_path / name) for name in ("right.json", "x.json")]
    assert "x.json" in refused(["show", *both], says=says)


@pytest.mark.parametrize(("make", "says"), [
    (lambda file: file.mkdir(), "Is a directory"), (lambda file: None, "No such file"),
    (lambda file: file.write_bytes(os.urandom(64) + b"\xff"), "no JSON"),
    (lambda file: file.write_bytes(b"\xff\xfe{\x00"), "no JSON"),
    (lambda file: file.symlink_to(file), "symbolic links"),
])  # fmt: skip
def test_a_file_that_is_none(tmp_path, make, says):
    make(tmp_path / "x.json")
    refused(["show", str(tmp_path / "x.json")], says=says)


# A part of a report, what stands there instead, and what is said.
PARTS = [
    ("schema", 7, "got 7"), ("schema", ["gradprobe.report/2"], "got ['gradprobe.report/2']"),
    ("schema", "gradprobe.report/9", "gradprobe.report/9"), ("runs", None, "`$.runs`"), ("runs.0", [], "`$.runs[0]`"),
    ("runs.0.verdict", 1, "runs[0].verdict"), ("target", "soft.py", "`$.target`"), ("origin", 3, "`$.origin`"),
    ("case.heads", 10**30, "case"), ("case.heads", 10**9, "`int` <= 65535 - at `$.case.heads`"),
    ("case.heads", ..., "do not fit together"),
    ("case.layouts", ..., "'layouts'"), ("case.layouts", ["q"], "damaged"),
    ("runs.1.memory.0.kind", "flood", "do not fit together"),
    ("runs.1.memory.0.line", 1.5, "`$.runs[1].memory[0].line`"),
    ("runs.1.first_mismatch.window.cols", 3, "`$.runs[1].first_mismatch.window.cols`"),
    ("runs.1.intermediates.4.heads.0.head", 10**6, "do not fit together"),
    ("diagnoses", "none", "`$.diagnoses`"),
    ("diagnoses.0.where.0.margin", 10**7, "$.diagnoses[0].where[0].margin"),
    ("diagnoses.0.edit", "yes", "`$.diagnoses[0].edit`"), ("seconds", [], "`$.seconds`"),
]  # fmt: skip


@sampled("part, instead, says", PARTS, push=12)
def test_a_part_that_is_no_part_of_a_report(right, tmp_path, part, instead, says):
    path = [int(one) if one.isdigit() else one for one in part.split(".")]
    damaged = with_part(json.loads(right[0]), path, instead)
    (tmp_path / "x.json").write_text(json.dumps(damaged))
    refused(["show", str(tmp_path / "x.json")], says=says)
    if part != "schema":
        several = SEVERAL | {"planned": 1, "reports": [damaged]}
        (tmp_path / "x.json").write_text(json.dumps(several))
        refused(["show", str(tmp_path / "x.json")], says="damaged")


SEVERAL = {"schema": "gradprobe.reports/2", "planned": 0, "warnings": [], "reports": []}


def with_part(document, path, instead):
    part = document
    for step in path[:-1]:
        part = part[step]
    if instead is ...:
        del part[path[-1]]
    else:
        part[path[-1]] = instead
    return document


def paths_of(value, path=()):
    if path:
        yield path
    parts = dict(enumerate(value)) if isinstance(value, list) else value
    for key, part in parts.items() if isinstance(parts, dict) else ():
        yield from paths_of(part, (*path, key))


STRANGE = [..., None, [], {}, "damaged", -1, 10**30, 1.5, True, [[]], {"damaged": {}}]


@sampled("seed", range(60), push=10)
def test_any_part_of_another_type_or_gone_is_shown_as_before_or_refused(right, tmp_path, seed):
    """Also in the page: what a part that may be absent says is left out, and all else is damage."""
    draw = random.Random(seed)
    document = json.loads(draw.choice(right))
    paths = list(paths_of(document))
    for number in range(3):
        path, instead = draw.choice(paths), draw.choice(STRANGE)
        damaged = with_part(json.loads(json.dumps(document)), path, instead)
        (tmp_path / f"{number}.json").write_text(json.dumps(damaged))
        ran = run(["show", str(tmp_path / f"{number}.json"), "--html", str(tmp_path / "x.html")])
        assert "itself failed" not in ran.err, (path, instead, ran.err)
        assert ran.code in (0, 1, 2, 3), (path, instead)


DAMAGED_SEVERAL = [
    ({"planned": "many"}, "damaged"), ({"reports": [{}]}, "$.reports[0]"), ({"warnings": [3]}, "damaged"),
    ({"warnings": ...}, "required field `warnings`"), ({"groups": {"a": 1}}, "damaged"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "says"), DAMAGED_SEVERAL)
def test_damaged_reports_of_several_checks(tmp_path, changes, says):
    document = {name: part for name, part in {**SEVERAL, **changes}.items() if part is not ...}
    (tmp_path / "x.json").write_text(json.dumps(document))
    refused(["show", str(tmp_path / "x.json")], says=says)


HEAD = {"schema": SCHEMA, "version": "0", "asked": {"requests": []}}
JOURNALS = [
    ("{", "it has no whole line"), ("[]\n", "line 1: expected a report, got a JSON list"), ("\xff\n", "line 1"),
    ("{}\n", "line 1: expected the schema"), (json.dumps({"schema": SCHEMA}) + "\n", "it has no 'asked'"),
    (json.dumps({**HEAD, "asked": []}) + "\n", "line 1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), JOURNALS)
def test_a_journal_that_is_none(tmp_path, text, says):
    (tmp_path / "x.jsonl").write_text(text)
    assert "x.jsonl" in refused(["sweep", "--resume", str(tmp_path / "x.jsonl")], says=says)


@pytest.mark.parametrize("text", ["", "[]", '{"report": {}}', "[" * 10_000])
def test_a_damaged_last_check_is_named(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".gradprobe").mkdir()
    (tmp_path / ".gradprobe" / "last.json").write_text(text)
    refused(["show"], says=".gradprobe/last.json is damaged: ")
