"""What is recovered of a black box on the screen, in JSON and close up."""

import json
import re
from pathlib import Path

from tests.cli.command import SMALL, run

FAILING = f"soft.py:half_a_delta_inside {SMALL}"
SENTENCE = "  dS is wrong in the kernels of dQ and dK"


def test_a_check_says_what_is_recovered_and_where_it_goes_wrong_inside():
    ran = run(f"check {FAILING} --json out.json", COLUMNS="80")
    lines = ran.out.splitlines()
    assert ran.code == 1
    words = "MISMATCH  delta is the first wrong intermediate in every head; only inherited: dS, dQ, dK"
    assert " ".join(ran.out.split()).startswith(
        f"{' '.join(words.split())} (soft.py:half_a_delta_inside, contiguous)"
    )
    sources = re.sub(r" \(to [^)]*\)", "", " ".join(ran.out.split()))
    assert "exported: dQ, dK, dV; recovered: P, dP, delta, dS; not exposed: LSE, O" in sources
    assert lines.count(SENTENCE) == 1
    # What is made to be searched for, or to be copied, is never folded.
    whole = ("FIRST MISMATCH", "  again: ")
    assert max(len(line) for line in lines if not line.startswith(whole)) <= 80
    first, second, _ = json.loads(Path("out.json").read_text())["runs"]
    # dQ and dK are wrong in the one-hot problems too, where their parents are known.
    statuses = {found["name"]: found["status"] for found in first["intermediates"]}
    assert (statuses["delta"], statuses["dS"], statuses["dQ"]) == (
        "mismatch",
        "inherited",
        "inherited",
    )
    assert first["inside"] == [SENTENCE.strip()]
    assert second["inside"] == []
