"""Names, source and messages of others reach no terminal, log or file so that they act there."""

import ast
import json
import re
from xml.etree import ElementTree

import pytest

from gradprobe.commands.shrink.shrinking import pytest_source
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.writing import IN_JSON, IN_MARKUP, inert, safe, visible
from gradprobe.render.files import FORMS
from tests.cli.command import SMALL, run, run_on_terminal
from tests.cli.written_targets import write_targets
from tests.render.written import ODD, document, failed, faulty, form, read_junit
from tests.render.written import run as run_in

# Ends a line, then commands a runner; moves a cursor by ESC and by CSI; turns the direction of what is read.
EVIL = "x\n::add-mask::x\n \t::error::x\r\n##[group]x\x1b]0;x\x07\x9b31m\x85\u2028\u2029\u202e\u2066\u200f\u061c"
# What no output may hold, but for the annotations that are asked for.
RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|^\\s*::|##\\[",
    re.MULTILINE,
)
FILES = [flag for flag, form in FORMS.items() if form.unfinished]


def raw(text):
    """What a runner or a terminal would obey in a text, each with what is around it."""
    return [text[max(0, found.start() - 40) : found.end() + 40] for found in RAW.finditer(text)]


# Words of a report that are no text but one of a few.
CLOSED = {
    "schema", "verdict", "status", "kind", "access", "intermediate", "axes", "severity", "layout", "layouts", "runs",
    "tiles", "along",
}  # fmt: skip


def spoiled(value, key=""):
    """A part of a report with EVIL behind each of its texts."""
    if isinstance(value, dict):
        name = {"name": value["name"]} if "heads" in value and "status" in value else {}
        return {one: spoiled(part, one) for one, part in value.items()} | name
    if isinstance(value, list):
        # The runs are parts of their own; the runs of a case are words.
        return [spoiled(one, key if isinstance(one, str) else "") for one in value]
    return value + EVIL if isinstance(value, str) and key not in CLOSED else value


@pytest.fixture(scope="module")
def hostile(failing_folder):
    """A folder with the report of a mismatch, its place, cause and tried edit, all of whose texts are evil."""
    document = spoiled(json.loads((failing_folder / "right.json").read_text()))
    (failing_folder / "evil.json").write_text(json.dumps(document))
    error = spoiled({"message": "m", "way_out": "w", "stack": "s"}) | {"kind": "TargetFailure"}
    failed = document | {"verdict": "error", "runs": [], "error": error}
    (failing_folder / "failed.json").write_text(json.dumps(failed))
    return failing_folder


@pytest.mark.parametrize("file", ["evil.json", "failed.json"])
@pytest.mark.parametrize("form", ["", *FORMS])
def test_no_form_of_a_report_holds_anything_that_acts(hostile, monkeypatch, file, form):
    monkeypatch.chdir(hostile)
    ran = run(f"show {file} --traceback {form} {'-' if form in FILES else ''}")
    assert ran.code == (1 if file == "evil.json" else 3)
    annotation = "^::(error|warning|notice) .*" if form == "--github" else "^$"
    err = re.sub(annotation, "", ran.err, flags=re.MULTILINE)
    assert raw(ran.out + err) == []
    assert re.search(r"(\\|&#92;)(x|u00)1b", ran.out + ran.err)
    READERS.get(form, str)(ran.out)
    if form in FILES:
        run(f"show {file} {form} out")
        told = raw((hostile / "out").read_text())
        assert [found for found in told if "::" not in found and "##[" not in found] == []


READERS = {"--json": json.loads, "--sarif": json.loads, "--junit": read_junit}


@pytest.mark.parametrize("flag", FORMS)
def test_every_text_of_a_report_may_hold_every_character(flag):
    odd = failed("TargetFailure", ODD, title=ODD, reproduce=ODD, target={"name": f"{ODD}.py:f"})
    wrong = faulty(title=ODD, reproduce=ODD)
    wrong["target"] |= {"name": ODD, "file": f"/repository/{ODD.replace('/', '')}.py"}
    skipped = document(run_in(ODD, verdict="skipped", skipped=ODD), title=ODD)
    text = form(flag, odd, wrong, skipped)
    READERS.get(flag, str)(text)
    assert re.search(r"\\\\?(x|u00)1b|&#92;x1b", text)
    if flag == "--github":
        assert text.count("\n") == len(re.findall("^::(?:error|notice) ", text, re.MULTILINE))
    elif flag in FILES:
        assert not re.search("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\ud800-\udfff]", text)


def test_a_terminal_shows_the_same_with_its_own_colours_alone(hostile, monkeypatch):
    monkeypatch.chdir(hostile)
    for command in ("show evil.json", "show right.json evil.json"):
        shown = run_on_terminal(command, bar=False).out
        assert "x1b" in shown
        assert raw(re.sub("\x1b\\[[0-9;]*m|\r(?=\n)", "", shown)) == []


@pytest.mark.parametrize("words", [
    ["check", f"soft.py:f{EVIL}"], ["check", f"{EVIL}.py:f"], ["show", EVIL], ["check", f"--{EVIL}"], [EVIL],
    ["diff", EVIL], ["init", "--ci", EVIL], ["check", "soft.py:backward", "--layout", EVIL],
    ["show", EVIL, EVIL], ["sweep", "--resume", EVIL], ["check", "soft.py:raises", *SMALL.split()],
])  # fmt: skip
def test_no_message_acts(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    write_targets(tmp_path)
    with (tmp_path / "soft.py").open("a") as file:
        file.write(f"\ndef raises(q, k, v, do, *, scale):\n    raise ValueError({EVIL!r})\n")
    ran = run(words)
    assert ran.code not in (0, 1)
    assert raw(ran.out + ran.err) == []


def test_what_is_shown_is_what_was_there_with_its_signs_written_out():
    assert safe("a\x1b[1mb\u202ec\td") == r"a\x1b[1mb\u202ec" + "\td"
    assert safe("::a::\n  ::b\nx::y ##[z]") == "\\x3a:a::\n  \\x3a:b\nx::y \\x23#[z]"
    assert safe(safe(EVIL)) == safe(EVIL)
    assert json.loads(inert(json.dumps({"##[x]": 1}), IN_JSON)) == {"##[x]": 1}
    assert ElementTree.fromstring(inert("<a>\n::b ##[</a>", IN_MARKUP)).text == "\n::b ##["
    assert visible("é 漢 😀 \t\n") == "é 漢 😀 \t\n"


def test_a_written_test_holds_the_title_as_it_is_and_runs(tmp_path):
    request = CheckRequest("it's {odd}/a.py:backward", None, None, {})
    source = pytest_source(request, f'C:\\users\\name {EVIL} """', tmp_path / "test_x.py")
    assert [found for found in raw(source) if "::" not in found] == []
    assert visible(EVIL) in ast.get_docstring(ast.parse(source), clean=False)
