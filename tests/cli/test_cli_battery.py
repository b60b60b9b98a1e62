"""`gradprobe check --battery`: one line a case, the simplest failing one in full, what is not taken with the reason."""

import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from gradprobe.cli.shared_options import with_word
from gradprobe.commands.suite import batteries as command
from gradprobe.commands.suite import case_factors as factors
from tests.cli.command import run, run_process

pytestmark = pytest.mark.usefixtures("without_causes")

TARGETS = '''
"""Attention forwards in torch that are right in the default check, but for one."""

import torch


def right(q, k, v, *, scale, causal=False):
    wide_q, wide_k, wide_v = (x.float().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (q, k, v))
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    seen = (j <= i + k.shape[2] - q.shape[2]) | (not causal)
    s = (wide_q @ wide_k.mT * scale).masked_fill(~seen, -torch.inf)
    alive = seen.any(-1, keepdim=True)
    return (s.masked_fill(~alive, 0.0).softmax(-1) * alive @ wide_v).to(q.dtype)


def no_maximum(q, k, v, *, scale):
    e = torch.exp(q @ k.mT * scale)
    return e / e.sum(-1, keepdim=True) @ v


def doubled(q, k, v, *, scale):
    return 2 * right(q, k, v, scale=scale)


def causal_in_16_bits(q, k, v, *, scale, causal=False):
    off = 1.01 if causal and q.dtype == torch.bfloat16 else 1.0
    return right(q, k, v, scale=scale * off, causal=causal)


def one_head_each(q, k, v, *, scale):
    if q.shape[1] != k.shape[1]:
        raise ValueError("as many key heads as heads, please")
    return right(q, k, v, scale=scale)


def ungrouped(q, k, v, *, scale):
    group = q.shape[1] // k.shape[1]
    return (q @ k.repeat(1, group, 1, 1).mT * scale).softmax(-1) @ v.repeat(1, group, 1, 1)


def late(q, k, v, *, scale):
    if q.shape[2] == 200:
        raise IndexError("a place that is not there")
    return right(q, k, v, scale=scale)


def usual(q, k, v, *, scale):
    """32-bit offsets, one head dim for all, and that a power of two."""
    if q.shape[3] == 72:
        raise IndexError("arange's range must be a power of 2")
    o = right(q, k * 2 if k.stride(2) > 2**20 else k, v, scale=scale)
    return torch.nn.functional.pad(o, (0, q.shape[3] - o.shape[3]))


def fatal(q, k, v, *, scale):
    import ctypes

    if q.shape[3] == 72:
        ctypes.string_at(0)
    return right(q, k, v, scale=scale)


def never(q, k, v, *, scale):
    raise ValueError("never")


def unimportable(q, k, v, *, scale, colour):
    return v
'''


@pytest.fixture(autouse=True)
def forwards(folder):
    (folder / "forwards.py").write_text(TARGETS)


@pytest.fixture
def items(monkeypatch, on_push):
    """Has the quick battery hold items of these numbers alone; at night it holds all."""

    def only(*numbers):
        whole = command.battery

        def some(*words):
            return [entry for entry in whole(*words) if not on_push or entry.number in numbers]

        monkeypatch.setattr(command, "battery", some)

    return only


def taken(*parameters):
    """How many cases a target of q, k, v, scale and these is given."""
    entries = command.battery("softmax", {"q", "k", "v", "scale", *parameters})
    return sum(not entry.why_not for entry in entries)


def titles(ran, verdict):
    """The cases with a verdict, as the table names them."""
    return [
        line[12:].split("  ")[0]
        for line in ran.out.splitlines()
        if line.startswith(f"  {verdict} ")
    ]


def test_a_right_target_matches_every_case_and_hears_what_it_does_not_take():
    ran = run("check forwards.py:right --battery quick --json all.json")
    assert (ran.code, ran.err) == (0, "")
    count = taken("causal")
    assert count >= 20
    assert len(titles(ran, "MATCH")) == count
    assert ran.out.splitlines()[-1].endswith(f" s: {count} match")
    assert (
        "  battery 9: window 45,21; battery 9: window 45, causal: takes no window"
        in ran.out.splitlines()
    )
    document = json.loads(Path("all.json").read_text())
    assert (document["verdict"], document["planned"], len(document["reports"])) == (
        "match",
        count,
        count,
    )
    assert document["reports"][0]["title"] == "battery 1: contiguous"
    assert {
        "title": "battery 16: tiles 16 x 32",
        "why": "takes no block_m and no block_n",
    } in document["not_taken"]


@pytest.mark.nightly
def test_what_only_one_item_shows_is_one_line_and_its_report_in_full():
    assert run("check forwards.py:no_maximum").code == 0
    ran = run("check forwards.py:no_maximum --battery quick")
    assert ran.code == 1
    assert titles(ran, "MISMATCH") == ["battery 10: every logit near -120"]
    at = ran.out.splitlines().index("battery 10: every logit near -120:")
    assert ran.out.splitlines()[at + 1].startswith("MISMATCH  P is the first wrong intermediate")
    assert len(ran.first_mismatches) == 1
    assert "recovered: P" in ran.out, (
        "of the one that is shown in full, the inside of the black box as well"
    )
    (again,) = [line for line in ran.out.splitlines() if line.startswith("  again: ")]
    assert "--pattern negative" in again
    assert "recover" not in again
    alone = run(again.removeprefix("  again: gradprobe "))
    assert alone.first_mismatches == ran.first_mismatches


@pytest.mark.nightly
def test_diff_repeats_the_simplest_failing_one():
    ran = run("check forwards.py:ungrouped --battery quick")
    assert ran.code == 1
    assert "  not meant to take fewer key heads than heads? let it raise a ValueError" in ran.out
    ran = run("diff O")
    assert "--kv-heads 2" in ran.out.splitlines()[0]
    assert ran.code == 1


@pytest.mark.nightly
def test_the_full_report_is_that_of_the_simplest_and_not_of_the_first_in_time():
    ran = run("check forwards.py:ungrouped --battery quick --json -")
    document = json.loads(ran.out)
    wrong = [report["title"] for report in document["reports"] if report["verdict"] == "mismatch"]
    assert wrong == ["battery 6: heads 6/2"], (
        "wrong numbers count, though nothing says that it takes such heads"
    )
    (report,) = [report for report in document["reports"] if report["verdict"] == "mismatch"]
    assert any(
        one["source"] == "recovered" for run in report["runs"] for one in run["intermediates"]
    )


def test_what_a_target_refuses_by_raising_is_not_taken_in_its_own_words(items):
    items(5, 6, 7)
    ran = run("check forwards.py:one_head_each --battery quick --json all.json")
    assert (ran.code, ran.err) == (0, "")
    why = "raised ValueError (contiguous): as many key heads as heads, please"
    assert f"  battery 6: heads 6/2: {why}" in ran.out.splitlines()
    document = json.loads(Path("all.json").read_text())
    assert document["verdict"] == "match"
    assert {"title": "battery 6: heads 6/2", "why": why} in document["not_taken"]
    assert document["planned"] == len(document["reports"]) == taken() - 1


def test_what_a_right_kernel_never_declared_to_take_are_warnings_that_change_nothing(items):
    items(12, 13, 14, 15)
    ran = run(
        "check forwards.py:usual --battery quick --json all.json --junit all.xml --sarif all.sarif --github"
    )
    assert ran.code == 0
    warned = [
        "battery 12: strides beyond 2^31",
        "battery 14: D = 72",
        "battery 15: Dv > D",
        "battery 15: Dv < D",
    ]
    assert titles(ran, "WARNING") == warned
    assert len(titles(ran, "MATCH")) == taken() - 4
    assert ran.out.splitlines()[-1].endswith(f" s: {taken() - 4} match, 4 warnings")
    said = ran.out.splitlines()
    at = said.index("warnings change no verdict; with --strict they are errors")
    assert [line.split(":")[0] for line in said[at + 1 : at + 4]] == [
        f"  battery {number}" for number in (12, 14, 15)
    ]
    document = json.loads(Path("all.json").read_text())
    assert (document["verdict"], document["planned"], len(document["reports"])) == (
        "match",
        *[taken() - 4] * 2,
    )
    assert [(one["title"], one["kind"]) for one in document["warnings"]] == list(
        zip(warned, ["huge", "undeclared", "undeclared", "undeclared"], strict=True)
    )
    assert document["warnings"][0]["report"]["runs"][0]["verdict"] == "mismatch"
    (suites,) = [ElementTree.parse("all.xml").getroot()]
    assert (suites.get("failures"), suites.get("errors")) == ("0", "0")
    results = json.loads(Path("all.sarif").read_text())["runs"][0]["results"]
    assert {(one["ruleId"], one["level"]) for one in results} == {
        ("GP040", "warning"),
        ("GP042", "warning"),
    }
    assert {line.split()[0] for line in ran.err.splitlines() if line.startswith("::")} == {
        "::warning"
    }


@pytest.mark.nightly
def test_with_strict_they_are_errors():
    ran = run("check forwards.py:usual --battery quick --strict")
    assert ran.code == 1
    assert titles(ran, "MISMATCH") == ["battery 12: strides beyond 2^31"]
    assert titles(ran, "ERROR") == [
        "battery 14: D = 72",
        "battery 15: Dv > D",
        "battery 15: Dv < D",
    ]


def test_an_accident_where_every_kernel_must_run_is_an_error_and_the_others_are_checked(items):
    items(12, 13, 14)
    ran = run("check forwards.py:late --battery quick")
    assert ran.code == 3
    assert titles(ran, "ERROR") == ["battery 13: L = 200"]
    assert len(titles(ran, "MATCH")) == taken() - 1


def test_a_crash_is_an_error_and_the_others_are_checked(items):
    items(14, 15, 16, 17)
    ran = run("check forwards.py:fatal --battery quick", GRADPROBE_ISOLATE="1")
    assert ran.code == 3
    assert titles(ran, "ERROR") == ["battery 14: D = 72"]
    assert (
        " crashed (contiguous): killed by SIGSEGV (segmentation fault), last at forwards.py:"
        in ran.out
    )
    assert titles(ran, "MATCH")[-1] == "battery 17: scale 0.4"


def test_a_target_that_refuses_everything_compares_nothing_and_exits_3(items):
    items(1, 2, 12)
    ran = run("check forwards.py:never --battery quick --json all.json")
    assert ran.code == 3
    assert ran.err == "gradprobe: nothing was compared: the target takes none of the cases\n"
    document = json.loads(Path("all.json").read_text())
    assert (document["verdict"], document["reports"]) == ("error", [])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("forwards.py:nothing", "has no function nothing"),
        ("missing.py:f", "there is no file missing.py"),
    ],
)
def test_a_target_that_is_none_is_told_once_before_any_item(target, message):
    ran = run(f"check {target} --battery quick")
    assert (ran.code, ran.out, ran.err.count(message)) == (2, "", 1)


def test_a_target_that_nothing_can_be_passed_to_is_told_once():
    ran = run("check forwards.py:unimportable --battery quick")
    message = "needs a parameter 'colour' that gradprobe has no value for"
    assert (ran.code, ran.out.count(message)) == (2, 2), "in its line and in full"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--heads 4", "--heads 4: every item of --battery sets it"),
        ("--no-causal", "--no-causal: item 7 (M < N, causal) of --battery sets it"),
        ("--kv-heads 2", "--kv-heads 2: item 6 (heads 6/2) of --battery sets it"),
        ("--inputs x.pt", "--inputs x.pt: every item of --battery sets it"),
        ("--layout do=expanded", "--layout do=expanded: every item of --battery sets it"),
    ],
)
def test_an_option_that_an_item_sets_is_refused_by_the_item(words, message):
    ran = run(f"check forwards.py:right --battery quick {words}")
    assert ran.code == 2
    assert ran.err == f"gradprobe: {message}\n  drop it, or check that case without --battery\n"


def test_options_that_no_item_sets_go_with_every_case(items):
    items(1, 4, 5)
    ran = run(
        "check forwards.py:one_head_each --battery quick --dtype float16 --seed 3 --strict --dots ieee --json -"
    )
    assert ran.code == 0
    cases = [report["case"] for report in json.loads(ran.out)["reports"]]
    assert {(case["dtype"], case["seed"], case["strict"], case["dots"]) for case in cases} == {
        ("float16", 3, True, "ieee")
    }


@pytest.mark.nightly
def test_what_the_environment_says_goes_with_every_case_but_what_the_items_set():
    words = {"GRADPROBE_DTYPE": "float16", "GRADPROBE_SEQLEN_Q": "80", "GRADPROBE_LAYOUT": "q=blhd"}
    ran = run_process("check forwards.py:one_head_each --battery quick --json -", **words)
    assert ran.code == 0
    cases = [report["case"] for report in json.loads(ran.out)["reports"]]
    assert {case["dtype"] for case in cases} == {"float16"}
    assert not any(case["seqlen_q"] == 80 or "q=blhd" in case["layouts"] for case in cases)


@pytest.mark.nightly
def test_targets_are_imported_in_processes_of_their_own():
    sys.modules.pop("gradprobe_target_forwards", None)
    assert run("check forwards.py:one_head_each --battery quick", GRADPROBE_ISOLATE="1").code == 0
    assert "gradprobe_target_forwards" not in sys.modules


@pytest.fixture
def few(monkeypatch):
    """Few levels of few properties, of which pairs are soon made."""
    levels = {
        "dtype": 2,
        "mask": 2,
        "length": 2,
        "M and N": 1,
        "logits": 1,
        "dO": 2,
        "q k v": 1,
        "key heads": 1,
    }
    known = [replace(one, levels=one.levels[: levels.get(one.name, 1)]) for one in factors._FACTORS]
    monkeypatch.setattr(factors, "_FACTORS", tuple(known))


def test_alone_it_is_every_pair_on_the_cpu_and_says_what_stands_in_a_case(few, folder):
    ran = run("check forwards.py:right --battery --json all.json --poison")
    assert (ran.code, ran.out) == (2, ""), "every case sets it"
    ran = run("check --battery --json all.json -- forwards.py:right")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(Path("all.json").read_text())
    # Three pairs of two levels each of four properties, those of the property with one level not counted.
    assert document["coverage"] == {
        "strength": 2, "properties": 5, "held": 32, "missing": 0, "wrong_alone": [], "wrong_together": [],
    }  # fmt: skip
    titles = [report["title"] for report in document["reports"]]
    assert all(any(title in line for line in ran.out.splitlines()) for title in titles), (
        "in a pipe none is cut"
    )
    assert titles[0] == "battery: simplest"
    assert document["planned"] == len(titles) == len(set(titles))
    assert "  a case checks every pair of 5 properties that it takes: 32" in ran.out.splitlines()
    assert run("show all.json").out.splitlines()[-2] == ran.out.splitlines()[-2]


@pytest.mark.nightly
def test_a_plain_case_that_is_wrong_is_the_only_check():
    ran = run("check forwards.py:doubled --battery")
    assert ran.code == 1
    assert titles(ran, "MISMATCH") == ["battery: as it is"]
    assert (
        "  the case without any option is not right, so nothing was combined"
        in ran.out.splitlines()
    )


@pytest.mark.nightly
def test_a_pair_of_properties_that_is_wrong_is_folded_and_named_by_both():
    ran = run("check forwards.py:causal_in_16_bits --battery pairs --shrink-budget 20")
    assert ran.code == 1
    wrong = titles(ran, "MISMATCH")
    assert wrong
    assert all("causal" in title and "bfloat16" in title for title in wrong)
    assert "CASES  " in ran.out
    assert "  smallest: gradprobe check " in ran.out


@pytest.mark.parametrize(
    ("words", "parsed"),
    [
        ("check lazy --battery", "check lazy --battery=auto"),
        ("check --battery lazy", "check --battery=auto lazy"),
        ("check --battery pairs lazy", "check --battery pairs lazy"),
        ("check --battery=quick", "check --battery=quick"),
        ("check --battery --json -", "check --battery=auto --json -"),
        ("run -- check --battery", "run -- check --battery"),
    ],
)
def test_battery_may_stand_without_its_word(words, parsed):
    assert with_word(words.split()) == parsed.split()


def test_a_word_that_is_no_battery_is_refused():
    ran = run("check forwards.py:right --battery=all")
    message = "gradprobe: --battery takes pairs or quick, got 'all'\n"
    assert (ran.code, ran.err) == (2, f"{message}  alone it is pairs\n")
