"""A saved report gives every form again, on another machine byte for byte as the run itself wrote it, without torch."""

import json
import re
import subprocess
import sys

import pytest

from gradprobe.model.documents import document_of, load, text_of
from gradprobe.render.files import FORMS
from tests.cli.command import SMALL, run, run_process
from tests.render.written import faulty
from tests.sampling import sampled

FILES = [flag for flag, form in FORMS.items() if form.unfinished]
OTHERS = [flag for flag in FORMS if flag not in FILES]
CRASHES = """
import ctypes
from soft import doubled_dq

def backward(q, k, v, do, *, scale):
    if not do.is_contiguous():
        ctypes.string_at(0)
    return doubled_dq(q, k, v, do, scale=scale)
"""
IN_SECONDS = re.compile(r"\d+\.\d s: ")


@pytest.fixture
def elsewhere(folder, tmp_path_factory, monkeypatch):
    """Another machine, as far as a report may know it: goes to another folder under another home, without GitHub."""

    def go():
        other = tmp_path_factory.mktemp("elsewhere")
        monkeypatch.chdir(other)
        monkeypatch.setenv("HOME", str(other))
        monkeypatch.delenv("GITHUB_WORKSPACE")
        return other

    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder.parent))
    return go


def in_every_form(words, name, runner=run):
    forms = " ".join([f"{flag} {name}{flag[1:]}" for flag in FILES] + OTHERS)
    return runner(f"{words} {forms}", GITHUB_STEP_SUMMARY=f"{name}-summary")


def written(folder, name, ran):
    """All that a command wrote but for times: by file, by stream."""
    files = {
        file.name.removeprefix(name): file.read_bytes() for file in folder.glob(f"{name}-*")
    }
    assert len(files) == len(FILES) + 1
    # What the target's process says is no form.
    own = [line for line in ran.err.splitlines() if line.startswith(("::", "gradprobe: "))]
    return files | {"stdout": IN_SECONDS.sub("", ran.out), "stderr": own, "code": ran.code}


def assert_same_elsewhere(folder, go, words, code, runner=run):
    made = in_every_form(words, "made", runner)
    assert made.code == code
    other = go()
    shown = in_every_form(f"show {folder}/made-json", "shown", runner)
    assert written(other, "shown", shown) == written(folder, "made", made)
    return made


@sampled("words, code", [
    (f"check crashes.py:backward {SMALL}", 1), (f"check soft.py:raising {SMALL} --traceback", 3),
    (f"sweep soft.py:doubled_dq {SMALL} --heads 2 --heads 3 --no-recover --workers 1", 1),
], push=2)  # fmt: skip
def test_every_form_is_what_the_run_itself_wrote(folder, elsewhere, words, code):
    (folder / "crashes.py").write_text(CRASHES)
    runner = run_process if "crashes" in words else run
    made = assert_same_elsewhere(folder, elsewhere, words, code, runner)
    assert ("crashed: killed by SIGSEGV" in made.out) == ("crashes" in words)


def test_without_a_file_all_of_the_last_check_is_shown(folder):
    assert run("show").code == 2
    short = run(f"check soft.py:wrong_delta {SMALL}", GRADPROBE_DETAILS="0")
    assert short.out.splitlines()[-1].startswith("  more: gradprobe show")
    whole = run("show", GRADPROBE_DETAILS="0")
    assert (whole.code, whole.first_mismatches) == (1, short.first_mismatches)
    details = run(f"check soft.py:wrong_delta {SMALL} --details", GRADPROBE_DETAILS="0")
    shown, told = (IN_SECONDS.sub("", ran.out).splitlines() for ran in (whole, details))
    assert shown[:26] == told[:26]
    assert len(shown) > 28


def test_show_imports_neither_torch_nor_triton(folder):
    (folder / "report.json").write_text(text_of(document_of(load(json.dumps(faulty())))))
    script = (
        "import sys\nfrom gradprobe.cli.root import main\n"
        "sys.argv = ['gradprobe', 'show', 'report.json', '--junit', 'j']\n"
        "try: main()\nexcept SystemExit as end: print('CODE', end.code)\n"
        "print('LOADED', {'torch', 'triton'} & {*sys.modules})"
    )
    out = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert out.endswith("CODE 1\nLOADED set()\n")
