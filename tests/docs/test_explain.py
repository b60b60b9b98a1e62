import re
from pathlib import Path

import pytest

import gradprobe
from gradprobe.diagnosis import lines
from gradprobe.diagnosis.explainers import diagnoses
from gradprobe.faults import fault_rows
from gradprobe.numerics.declared_precision import UNITS
from gradprobe.numerics.evenness import NAME
from gradprobe.render.alerts import RULES
from gradprobe.source.lint import FOREIGN
from tests.cli.command import run

PACKAGE = Path(gradprobe.__file__).parent
PAGE = PACKAGE.parent / "docs" / "explain.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="a checkout alone has the docs")
# Heading, title, other names and detail, and what follows, of each entry.
_ENTRY = re.compile(r"^### (.+)\n\n\*\*(.+?)\*\*(.*)\n\n(.+(?:\n(?!##).*)*)", re.MULTILINE)
_LINK = re.compile(
    r"https://github\.com/[\w.-]+/[\w.-]+(/(issues|pull)/\d+|/commit/[0-9a-f]{7,})?"
)
_OWN = {"GP003", "GP024", "GP025", "GP026", "GP027", "I11", "convention", "formula"}
# Of pieces of the source that give a diagnosis its word.
_WORD = re.compile(r"""["']([a-z]+)/(?:[\w{-]|["'])""")


def entries(head):
    """Of a section of the page its entries: name, title, what stands behind it, and the text."""
    section = PAGE.read_text().split(f"\n## {head}\n")[1].split("\n## ")[0]
    return _ENTRY.findall(section)


def names(head):
    return {
        word
        for name, _, behind, _ in entries(head)
        for word in (name, *re.findall(r"`([^`]+)`", behind))
    }


def _words_of_faults():
    """What stands before the slash in every fault that the source can name."""
    files = [file for file in (PACKAGE / "faults").glob("*.py") if file.name != "fault_rows.py"]
    files += [PACKAGE / f"diagnosis/{one}.py" for one in ("behaviour", "why", "plain_python")]
    found = {word for file in files for word in _WORD.findall(file.read_text())}
    for file in ("sharded/ring_faults.py", "diagnosis/edits/tried.py"):
        found |= {*re.findall(r'f?"(ring|edit)/', (PACKAGE / file).read_text())}
    tables = ("FORMULAS", "OPERANDS", "FACTORS", "SUMS", "PYTHON")
    rows = "\n".join(getattr(fault_rows, name) for name in tables)
    found |= {*re.findall(r"^(\w+)/.* \| ", rows, re.M)}
    # `--against interpreted` tells compilers apart, and memory shows what wraps.
    found |= {"compiler", "wrap"}
    return found | {*diagnoses._KINDS} | {word for word, *_ in lines._KINDS.values()}


def test_every_fault_that_a_diagnosis_can_name_is_explained_and_every_class():
    words = _words_of_faults()
    assert len(words) > 35
    assert {"stride", "tile", "race", "ring", "outside"} <= words
    assert names("Faults") == words
    classes = {one for one, *_ in diagnoses._KINDS.values()}
    classes |= {one for _, one, _ in lines._KINDS.values()}
    classes |= {"S2", "I64", "M1", "N1", "DRP", "ACC", "ATUNE", "COMP", "RING"}
    told = re.findall(r"\(([^()]+)\)$", "\n".join(each[2] for each in entries("Faults")), re.M)
    assert classes <= {*", ".join(told).split(", ")}


def test_identities_budgets_and_rules_are_those_of_the_tool():
    assert {name: title for name, title, *_ in entries("Identities")} == dict(
        [NAME.split(" ", 1)]
    )
    assert {*UNITS, "float16", "bfloat16", "dyadic"} <= names("Budgets")
    rules = {name: (title, text) for name, title, _, text in entries("Rules")}
    assert rules.keys() == {*RULES, FOREIGN}
    for rule in RULES.values():
        assert rules[rule.id] == (rule.title, "\n\n".join(rule.paragraphs) + "\n")


def test_each_says_what_it_is_how_it_looks_where_it_was_seen_and_what_to_try():
    for head in ("Faults", "Rules", "Identities", "Budgets"):
        for name, title, _, text in entries(head):
            assert 0 < len(title) < 100
            assert "\n\n**Looks like:** " in text, name
            assert "\n\n**Try:** " in text, name
            seen = re.search(r"\*\*Seen:\*\* .*<(.*)>", text)
            assert (seen is None) == (name in _OWN), name
            assert seen is None or _LINK.fullmatch(seen[1]), name


def test_explain_prints_the_entries_of_a_word_and_names_one_that_is_close():
    page = PAGE.read_text()
    stride = page[page.index("### stride\n") : page.index("### store\n")]
    assert run("explain stride/do-head").out == stride.rstrip() + "\n"
    assert run("explain AccessOutsideTensor").out.startswith("### GP010\n")
    assert run("explain race").out.count("### ") == 4  # and those of that class
    assert run("explain").out.startswith("- `stride`: A tensor is read with another tensor's")
    refused = run("explain strid")
    assert (refused.code, refused.out, "did you mean 'stride'?" in refused.err) == (2, "", True)
