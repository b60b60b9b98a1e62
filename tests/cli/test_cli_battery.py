import json
from pathlib import Path

import pytest

from gradprobe.cli.option_rows import with_word
from gradprobe.commands.suite import case_factors as cases
from tests.cli.command import run

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


def one_head_each(q, k, v, *, scale):
    if q.shape[1] != k.shape[1]:
        raise ValueError("as many key heads as heads, please")
    return right(q, k, v, scale=scale)


def usual(q, k, v, *, scale):
    """32-bit offsets, one head dim for all, and that a power of two."""
    if q.shape[3] == 72:
        raise IndexError("arange's range must be a power of 2")
    o = right(q, k * 2 if k.stride(2) > 2**20 else k, v, scale=scale)
    return torch.nn.functional.pad(o, (0, q.shape[3] - o.shape[3]))


def fatal(q, k, v, *, scale):
    import ctypes

    if q.shape[2] == 129:
        raise IndexError("a place that is not there")
    if q.shape[3] == 72:
        ctypes.string_at(0)
    return right(q, k, v, scale=scale)


def never(q, k, v, *, scale):
    raise ValueError("never")
'''


@pytest.fixture(autouse=True)
def forwards(folder):
    (folder / "forwards.py").write_text(TARGETS)


@pytest.fixture
def few(monkeypatch):
    """Leaves a battery few levels of few properties, and of what no pair shows what has such a name."""

    def only(*levels, special=""):
        known = []
        for first, *others in cases.FACTORS:
            known.append((first, *(level for level in others if level.name in levels)))
        left = tuple(level for level in cases.SPECIAL if special and special in level.name)
        monkeypatch.setattr(cases, "FACTORS", tuple(known))
        monkeypatch.setattr(cases, "SPECIAL", left)

    return only


def titles(ran, verdict):
    return [
        line[12:].split("  ")[0]
        for line in ran.out.splitlines()
        if line.startswith(f"  {verdict} ")
    ]


def test_a_right_target_matches_every_case_and_hears_what_it_does_not_take(few):
    few("float16", "causal", "window", "tiles=16x32", "grouped", special="2^31")
    ran = run("check forwards.py:right --battery quick --json all.json")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    words = "as it is,simplest,float16,causal,grouped,strides beyond 2^31,logits to 100"
    names = words.split(",")
    assert titles(ran, "MATCH") == [f"battery: {name}" for name in names]
    assert lines[-1].endswith(" s: 7 match")
    assert "  battery: window: takes no window" in lines
    document = json.loads(Path("all.json").read_text())
    assert (document["verdict"], document["planned"]) == ("match", 7)
    assert "coverage" not in document
    tiles = {"title": "battery: tiles=16x32", "why": "takes no block_m and no block_n"}
    assert tiles in document["not_taken"]


def test_what_a_right_kernel_never_declared_to_take_are_warnings_and_errors_with_strict(few):
    few("D=72", "D=16 Dv=32", special="2^31")
    words = "--json all.json --sarif all.sarif"
    ran = run(f"check forwards.py:usual --battery quick {words}")
    assert ran.code == 0
    names = ["D=72", "D=16 Dv=32", "strides beyond 2^31"]
    warned = [f"battery: {name}" for name in names]
    assert titles(ran, "WARNING") == warned
    said = ran.out.splitlines()
    assert said[-1].endswith(" s: 3 match, 3 warnings")
    at = said.index("warnings change no verdict; with --strict they are errors")
    assert {line.split(": ")[1] for line in said[at + 1 : at + 4]} == {*names}
    document = json.loads(Path("all.json").read_text())
    assert (document["verdict"], len(document["reports"])) == ("match", 3)
    assert sorted(one["kind"] for one in document["warnings"]) == ["huge"] + ["undeclared"] * 2
    assert document["warnings"][-1]["report"]["runs"][0]["verdict"] == "mismatch"
    results = json.loads(Path("all.sarif").read_text())["runs"][0]["results"]
    rules = {(one["ruleId"], one["level"]) for one in results}
    assert rules == {("GP040", "warning"), ("GP042", "warning")}
    ran = run("check forwards.py:usual --battery quick --strict")
    assert ran.code == 1
    assert titles(ran, "MISMATCH") == warned[2:]
    assert titles(ran, "ERROR") == warned[:2]


def test_an_accident_and_a_crash_are_errors_and_the_others_are_checked(few):
    few("128k+1", "D=72", "scale=0.4")
    ran = run("check forwards.py:fatal --battery quick", GRADPROBE_ISOLATE="1")
    assert ran.code == 3
    assert titles(ran, "ERROR") == ["battery: L=129", "battery: D=72"]
    words = " crashed (contiguous): killed by SIGSEGV (segmentation fault), last at forwards.py:"
    assert words in ran.out
    assert titles(ran, "MATCH")[-2:] == ["battery: scale=0.4", "battery: logits to 100"]


def test_a_target_that_refuses_everything_compares_nothing_and_exits_3():
    ran = run("check forwards.py:never --battery quick --json all.json")
    assert ran.code == 3
    told = "gradprobe: nothing was compared: the target takes none of the cases\n"
    assert ran.err == told
    document = json.loads(Path("all.json").read_text())
    assert (document["verdict"], document["reports"]) == ("error", [])


@pytest.mark.parametrize(
    ("words", "parsed"),
    [
        ("check --battery lazy", "check --battery=auto lazy"),
        ("run -- check --battery", "run -- check --battery"),
        ("check --battery pairs lazy", "check --battery pairs lazy"),
    ],
)
def test_battery_may_stand_without_a_word(words, parsed):
    assert with_word(words.split()) == parsed.split()


def test_alone_it_is_every_pair_on_the_cpu_and_says_what_stands_in_a_case(few, folder):
    few("float16", "causal", "short", "blhd", "do=blhd", special="four")
    ran = run("check forwards.py:right --battery --json all.json --poison")
    told = "gradprobe: --poison: --battery sets it\n  drop it, or check that case without --battery\n"
    assert (ran.code, ran.out, ran.err) == (2, "", told)
    ran = run("check --battery --json all.json -- forwards.py:right")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(Path("all.json").read_text())
    assert document["coverage"] == {
        "strength": 2, "properties": 4, "held": 24, "missing": 0,
    }  # fmt: skip
    titles = [report["title"] for report in document["reports"]]
    assert all(any(title in line for line in ran.out.splitlines()) for title in titles), (
        "in a pipe none is cut"
    )
    assert titles[0] == "battery: simplest"
    assert document["planned"] == len(titles) == len(set(titles))
    assert "  a case checks every pair of 4 properties that it takes: 24" in ran.out.splitlines()
    assert run("show all.json").out.splitlines()[-2] == ran.out.splitlines()[-2]
