"""What is recovered of a black box on the screen, in JSON and close up."""

import json
import re

from tests.cli.command import SMALL, run
from tests.sampling import sampled

FAILING = f"soft.py:half_a_delta_inside {SMALL}"
SENTENCE = "  dS is wrong in the kernels of dQ and dK"


@sampled("columns", ["80", "120"], push=1)
def test_a_check_says_what_is_recovered_and_where_it_goes_wrong_inside(columns):
    ran = run(f"check {FAILING}", COLUMNS=columns)
    lines = ran.out.splitlines()
    assert ran.code == 1
    words = (
        "MISMATCH  delta is the first wrong intermediate in every head; only inherited: dS, dQ, dK"
    )
    assert " ".join(ran.out.split()).startswith(
        f"{' '.join(words.split())} (soft.py:half_a_delta_inside, contiguous)"
    )
    sources = re.sub(r" \(to [^)]*\)", "", " ".join(ran.out.split()))
    assert "exported: dQ, dK, dV; recovered: P, dP, delta, dS; not exposed: LSE, O" in sources
    assert lines.count(SENTENCE) == 1
    # What is made to be searched for, or to be copied, is never folded.
    whole = ("FIRST MISMATCH", "  again: ")
    assert max(len(line) for line in lines if not line.startswith(whole)) <= int(columns)


def test_json_names_the_source_of_each_intermediate_and_the_sentences():
    ran = run(f"check {FAILING} --json -")
    first, second, _ = json.loads(ran.out)["runs"]
    sources = {found["name"]: found["source"] for found in first["intermediates"]}
    assert sources == dict.fromkeys(("P", "dP", "delta", "dS"), "recovered") | dict.fromkeys(
        ("dQ", "dK", "dV"), "exported"
    ) | {"LSE": None, "O": None}
    # dQ and dK are wrong in the one-hot problems too, where their parents are known.
    statuses = {found["name"]: found["status"] for found in first["intermediates"]}
    assert (statuses["delta"], statuses["dS"], statuses["dQ"]) == (
        "mismatch",
        "inherited",
        "inherited",
    )
    assert first["inside"] == [SENTENCE.strip()]
    assert second["inside"] == []


@sampled("name", ["P", "dP", "delta", "dS"], push=2)
def test_diff_shows_what_was_recovered(name):
    ran = run(f"diff {name} {FAILING}")
    assert (ran.code, ran.err) == (1, "")
    wrong = {
        "P": "all 400 elements within",
        "dP": "all 400 elements within",
        "delta": "20 of 20 elements wrong",
    }
    assert wrong.get(name, "of 400 elements wrong") in ran.out


def test_diff_of_a_gradient_shows_the_run_in_which_its_parents_are_known():
    ran = run(f"diff dQ {FAILING} --json -")
    assert json.loads(ran.out)["close_up"]["layout"] == "contiguous"


def test_diff_finds_what_was_recovered_in_a_later_layout_than_the_first_shown():
    layouts = "--layout do=blhd"
    assert "within budget" in run(f"diff P soft.py:only_gradients {SMALL} {layouts}").out


def test_a_target_that_refuses_the_probes_matches_and_the_reason_is_one_line_of_the_report():
    ran = run(f"check soft.py:gradients_of_keys_without_0 {SMALL}")
    assert ran.code == 0
    said = " ".join(ran.out.split())
    assert (
        "P and dS are not recovered in contiguous: target 'soft.py:gradients_of_keys_without_0' raised"
        in said
    )
    assert "AssertionError (contiguous): a key holds a 0" in said


def test_a_layout_that_repeats_values_is_checked_and_not_looked_into():
    ran = run(f"check soft.py:only_gradients {SMALL} --layout do=expanded")
    assert ran.code == 0
    assert (
        "P and dS are not recovered in do=expanded: a layout that repeats values holds no one-hot rows"
        in " ".join(ran.out.split())
    )


def test_without_recovery_nothing_is_recovered():
    ran = run(f"check soft.py:half_a_delta_inside {SMALL} --no-recover")
    assert "not exposed: LSE, P, O, dP, delta, dS" in ran.out
