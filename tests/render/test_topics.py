"""Every word of a report is explained, once; the page, SARIF and the command say the same."""

import re
from pathlib import Path

import pytest

import gradprobe
from gradprobe.diagnosis import lines
from gradprobe.diagnosis.explainers import diagnoses
from gradprobe.faults import fault_rows
from gradprobe.model.failures import UsageFailure
from gradprobe.numerics.declared_precision import UNITS
from gradprobe.numerics.evenness import NAME
from gradprobe.render.alerts import RULES
from gradprobe.render.topic import BUDGET, FAULT, IDENTITY, render_topics, topics, topics_of
from gradprobe.source.lint import FOREIGN
from tests.docs.explain import page

PACKAGE = Path(gradprobe.__file__).parent
_LINK = re.compile(
    r"https://github\.com/[\w.-]+/[\w.-]+(/(issues|pull)/\d+|/commit/[0-9a-f]{7,})?"
)
_OWN = {"GP003", "GP024", "GP025", "GP026", "GP027", "I11", "convention", "formula"}
# Of pieces of the source that give a diagnosis its word.
_WORD = re.compile(r"""["']([a-z]+)/(?:[\w{-]|["'])""")


def _words_of_faults():
    """What stands before the slash in every fault that the source can name."""
    files = [file for file in (PACKAGE / "faults").glob("*.py") if file.name != "fault_rows.py"]
    files += [
        PACKAGE / "diagnosis" / f"{name}.py" for name in ("behaviour", "why", "plain_python")
    ]
    found = {
        word
        for file in files
        for word in _WORD.findall(re.sub(r'@door\(".*"\)|"faults/\w+"', "", file.read_text()))
    }
    told = [
        (PACKAGE / file).read_text()
        for file in ("sharded/ring_faults.py", "diagnosis/edits/tried.py")
    ]
    found |= {word for text in told for word in re.findall(r'f?"(ring|edit)/', text)}
    rows = "\n".join(
        getattr(fault_rows, name)
        for name in ("FORMULAS", "OPERANDS", "FACTORS", "SUMS", "PYTHON")
    )
    found |= set(re.findall(r"^(\w+)/.* \| ", rows, re.M))
    found |= {
        "compiler",
        "wrap",
    }  # which `--against interpreted` tells apart, and what memory shows
    return found | set(diagnoses._KINDS) | {word for word, *_ in lines._KINDS.values()}


def test_every_fault_that_a_diagnosis_can_name_is_explained():
    words = _words_of_faults()
    assert len(words) > 35
    assert {"stride", "tile", "race", "ring", "outside"} <= words
    for word in words:
        assert [topic.kind for topic in topics_of(f"{word}/dQ-something")] == [FAULT], word
    assert {name for topic in topics() if topic.kind == FAULT for name in topic.names} == words


def test_every_class_of_a_diagnosis_is_explained():
    classes = {
        *(one for one, *_ in diagnoses._KINDS.values()),
        *(one for _, one, _ in lines._KINDS.values()),
    }
    classes |= {"S2", "I64", "M1", "N1", "DRP", "ACC", "ATUNE", "COMP", "RING"}
    for one in classes:
        found = topics_of(one.lower())
        assert found
        assert all(one in topic.classes for topic in found)
    assert [topic.name for topic in topics_of("S1")] == ["stride", "store", "load"]


def test_identities_budgets_and_rules_are_those_of_the_tool():
    assert {topic.name: topic.title for topic in topics() if topic.kind == IDENTITY} == dict(
        [NAME.split(" ", 1)]
    )
    named = {name for topic in topics() if topic.kind == BUDGET for name in topic.names}
    assert {*UNITS, "float16", "bfloat16", "dyadic"} <= named
    for word in (*RULES, *(rule.name for rule in RULES.values()), FOREIGN):
        assert len(topics_of(word)) == 1


def test_each_says_what_it_is_how_it_looks_where_it_was_seen_and_what_to_try():
    for topic in topics():
        assert 0 < len(topic.title) < 100
        assert all((topic.what, topic.looks, topic.help)), topic.name
        assert bool(topic.seen) == (topic.name not in _OWN), topic.name
        link = topic.seen.partition(" <")[2].removesuffix(">")
        assert not topic.seen or _LINK.fullmatch(link), topic.name


def test_a_mistyped_word_names_the_one_that_is_meant():
    with pytest.raises(UsageFailure) as refused:
        topics_of("strde/do-head")
    assert refused.value.way_out.startswith("did you mean 'stride'?")
    with pytest.raises(UsageFailure):
        topics_of("GP010/do")


def test_the_page_is_written_from_the_same_text():
    assert (PACKAGE.parent / "docs" / "explain.md").read_text() == page()
    words = "\n".join(line.plain for line in render_topics(topics_of("stride"), 80))
    assert words.startswith("stride (fault, S1)")
    assert "Try: gradprobe strides TARGET" in words
