"""What a user's files hold is never called a fault of the tool, nor passed over: each is named, with its way out."""

import pytest

from tests.cli.command import SMALL, run
from tests.cli.written_targets import write_targets
from tests.sampling import sampled

TABLE = '[tool.gradprobe]\ntargets = ["soft.py:backward"]\n'
CONFIGURED = {
    "arrays": (TABLE + "heads = " + "[" * 500 + "]" * 500).encode(),
    "tables": (TABLE + "heads = " + "{a=" * 500 + "1" + "}" * 500).encode(),
    **{name: TABLE.encode(name) for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")},
}
WORDLESS = """
class Wordless(Exception):
    def __str__(self):
        raise ValueError("no words")
"""
RAISES = {"call": "def f(q, k, v, do):\n    raise Wordless\n", "import": "raise Wordless\n"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_targets(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", CONFIGURED)
def test_a_configuration_that_cannot_be_read_is_refused_by_its_name(kind, folder):
    (folder / "pyproject.toml").write_bytes(CONFIGURED[kind])
    ran = run("check")
    assert (ran.code, ran.out) == (2, "")
    assert ("must be UTF-8" if "utf" in kind else "nested too deeply") in ran.err
    assert str(folder / "pyproject.toml") in ran.err


@pytest.mark.parametrize("moment", RAISES)
@sampled("command", ["check", "lint", "shrink", "diff dQ", "check --baseline kept.json", "strides --fast"],
         push=["check", "lint", "shrink", "diff dQ"])  # fmt: skip
def test_an_exception_that_has_no_words_is_the_targets(command, moment, folder):
    (folder / "wordless.py").write_text(WORDLESS + RAISES[moment])
    ran = run(f"{command} wordless.py:f {SMALL if command != 'lint' else ''}")
    assert (ran.code, "gradprobe itself failed" in ran.err) == (3, False)
    assert "wordless.py:f" in ran.err
    assert "Wordless" in ran.err or command == "lint"


@pytest.mark.parametrize("command", [
    "check", "lint", "strides", "shrink", "diff dQ", "sweep", "mutate", "check --baseline kept.json",
])  # fmt: skip
def test_a_target_that_is_the_empty_word_of_an_unset_variable_is_not_the_default_one(command):
    assert run([*command.split(), ""]).code == 2
