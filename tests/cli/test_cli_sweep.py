import json
import signal
import time

import pytest

from tests.cli.command import run, start

pytestmark = pytest.mark.usefixtures("without_causes")

TINY = "--batch 1 --head-dim 8"
EDGE = """
from soft import backward as right
def backward(q, k, v, do, *, scale, causal=False):
    results = right(q, k, v, do, scale=scale, causal=causal)
    if q.shape[2] > 16 and causal:
        results["dQ"][:, :, 16:] *= 1.5
    return results
"""


def reports(folder, name="all.json"):
    return json.loads((folder / name).read_text()).get("reports")


def test_options_given_several_times_make_every_combination(folder):
    words = "--heads 3 --kv-heads 3 --kv-heads 2 --seqlen 9 --seqlen 20"
    ran = run(f"sweep soft.py:backward {TINY} {words} --json all.json")
    assert ran.code == 2
    found = [(one["title"], one["verdict"]) for one in reports(folder)]
    assert found == [
        ("Hkv=3 L=9", "match"), ("Hkv=3 L=20", "match"), ("Hkv=2 L=9", "error"),
        ("Hkv=2 L=20", "error"),
    ]  # fmt: skip
    assert [one["case"]["seqlen_q"] for one in reports(folder)[:2]] == [9, 20]
    assert "--kv-heads must divide --heads, got 2 and 3" in ran.out
    assert ran.out.splitlines()[-1].endswith(": 2 match, 2 errors")


def test_an_interrupt_keeps_what_came_and_is_no_mismatch(folder):
    (folder / "slow.py").write_text(
        "import time\nfrom soft import backward\n"
        "def f(q, k, v, do, *, scale):\n"
        "    if q.shape[1] > 1:\n        time.sleep(600)\n"
        "    return backward(q, k, v, do, scale=scale)\n"
    )
    with start(
        f"sweep slow.py:f {TINY} --seqlen 9 --heads 1 --heads 2 --workers 1 --json all.json"
    ) as process:
        deadline = time.monotonic() + 100
        while not ((folder / "all.json").exists() and reports(folder)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = (stream.decode() for stream in process.communicate(timeout=60))
    assert process.returncode == 130
    assert out.splitlines()[-1].endswith(" s: 1 match, 1 not made")
    assert "gradprobe: interrupted after 1 of 2 checks\n" in err
    document = json.loads((folder / "all.json").read_text())
    assert (document["verdict"], document["planned"]) == ("incomplete", 2)


def test_failures_of_one_cause_are_one_group_with_a_smallest_case(folder):
    (folder / "edge.py").write_text(EDGE)
    words = "--causal --no-causal --seqlen 9 --seqlen 20 --seqlen 37 --heads 1 --heads 2 --layout contiguous"
    ran = run(f"sweep edge.py:backward {TINY} {words} --shrink-budget 60 --json all.json")
    assert ran.code == 1
    document = json.loads((folder / "all.json").read_text())
    (group,) = document["groups"]
    assert len(group["titles"]) == 4
    assert group["common"] == ["all 4 failures have L >= 16 and --causal, no match has both"]
    assert group["shrunk"]["verdict"] == "mismatch"
    lines = ran.out.splitlines()
    (smallest,) = (line for line in lines if line.startswith("  smallest: gradprobe check "))
    assert "--seqlen 17 --head-dim 1" in smallest
    assert smallest.endswith(group["shrunk"]["reproduce"].removeprefix("gradprobe check "))
    assert run("show all.json").out.splitlines()[-20:-1] == lines[-20:-1]
    first = next(one for one in document["reports"] if one["verdict"] == "mismatch")
    assert f"\n{first['title']}:\nMISMATCH  dQ is the first wrong intermediate" in ran.out
    again = run(first["reproduce"].removeprefix("gradprobe "))
    assert (again.code, again.first_mismatches) == (1, ran.first_mismatches)
