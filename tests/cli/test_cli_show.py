"""A saved report gives every form again, byte for byte as the run itself wrote it, and without torch."""

import re
import subprocess
import sys

import pytest

from tests.cli.command import SMALL, run

FORMS = ("--json", "--junit", "--sarif")


def forms(name):
    return " ".join(f"{flag} {name}{flag[1:]}" for flag in FORMS)


def contents(folder, name):
    return [(folder / f"{name}{flag[1:]}").read_bytes() for flag in FORMS]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (f"check soft.py:nan_in_dk {SMALL}", 1),
        (f"check soft.py:raising {SMALL}", 3),
        (f"check soft.py:backward {SMALL} --heads 0", 2),
    ],
)
def test_every_form_is_what_the_run_itself_wrote(folder, words, code):
    made = run(f"{words} {forms('made')} --github")
    shown = run(f"show made-json {forms('shown')} --github")
    assert (made.code, shown.code) == (code, code)
    assert shown.out == made.out or code != 1
    assert contents(folder, "shown") == contents(folder, "made")
    annotations = [[line for line in each.err.splitlines() if line.startswith("::")] for each in (made, shown)]
    assert annotations[0] == annotations[1]
    assert annotations[0]


def test_several_checks_are_shown_as_they_were(folder):
    made = run(f"sweep soft.py:doubled_dq {SMALL} --heads 2 --heads 3 --no-recover --workers 1 {forms('made')}")
    shown = run(f"show made-json {forms('shown')}")
    assert (made.code, shown.code) == (1, 1)
    assert contents(folder, "shown") == contents(folder, "made")
    in_seconds = r"\d+\.\d s: "
    assert re.sub(in_seconds, "", shown.out) == re.sub(in_seconds, "", made.out)


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "cannot be read, No such file or directory"), ("", "no JSON"), ("{}", "expected a report of schema")],
)
def test_what_is_no_report_is_refused(folder, text, words):
    if text is not None:
        (folder / "any.json").write_text(text)
    ran = run("show any.json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("gradprobe: any.json: ")
    assert words in ran.err


def test_show_imports_neither_torch_nor_triton(folder):
    import json

    from gradprobe.model.documents import dump, load
    from tests.render.written import faulty

    (folder / "report.json").write_text(dump(load(json.dumps(faulty()))))
    script = (
        "import sys\nfrom gradprobe.cli.app import main\n"
        "sys.argv = ['gradprobe', 'show', 'report.json', '--junit', 'j']\n"
        "try: main()\nexcept SystemExit as end: print('CODE', end.code)\n"
        "print('LOADED', {'torch', 'triton'} & {*sys.modules})"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "CODE 1" in out
    assert "LOADED set()" in out
