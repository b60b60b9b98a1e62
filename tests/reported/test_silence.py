"""What a target may take and its case does not use is tried in a small second case, or listed as not checked."""

import json
import shlex

from tests.cli.command import run, run_process
from tests.sampling import sampled


@sampled(
    "name, words",
    [("of_two_batches", "a third batch"), ("of_eight_heads", "a tenth head"), ("causal_alone", "a causal mask"),
     ("deaf_to_scale", "another scale"), ("first_of_a_group", "grouped heads"),
     ("more_rows_than_keys_declared", "more rows than keys"), ("no_row_alone", "a single row and key")],
    push=[("of_eight_heads", "a tenth head"), ("no_row_alone", "a single row and key")],
)  # fmt: skip
def test_what_the_case_does_not_use_is_checked_in_a_small_second_one(check, name, words):
    ran, report = check(f"unused.py:{name} --fix-budget 0 --no-recover")
    assert (ran.code, report["verdict"]) == (1, "mismatch")
    assert report["beyond"].startswith(f"{words}: --")
    assert f"right as it was asked for, wrong with {words}" in " ".join(ran.out.split())
    if name == "of_eight_heads":  # diff is of the same case, and the command makes the same check
        assert run("diff dV").code == 1
        again = run(shlex.split(report["reproduce"])[1:])
        assert (again.code, again.first_mismatches) == (1, ran.first_mismatches)


@sampled(
    "name, listed, undeclared",
    [("attention", [], []), ("refuses_causal", [], []),
     ("one_key_head_each", [], ["grouped heads (--kv-heads)"]),
     # One key head that torch spreads is no proof of grouped heads.
     ("spread_by_torch --heads 2", ["a tenth head (--heads)"], ["grouped heads (--kv-heads)"]),
     ("more_rows_than_keys", [], ["more rows than keys (--seqlen-q, --seqlen-k)"]),
     ("with_softcap", ["--softcap", "--bias"], []), ("without_maximum", [], ["logits near -120 (--pattern negative)"]),
     ("for_narrow_heads", [], ["another head dim (--head-dim)"]), ("rounded_scores --dtype bfloat16", [], [])],
    push=5,
)  # fmt: skip
def test_what_may_not_be_meant_to_be_taken_is_listed_and_no_mismatch(
    check, name, listed, undeclared
):
    ran, report = check(f"unused.py:{name}")
    assert (ran.code, report["verdict"], report["beyond"]) == (0, "match", "")
    assert (report["not_checked"], report["undeclared"]) == (listed, undeclared)
    assert all(word in " ".join(ran.out.split()) for word in (*listed, *undeclared))


def test_an_option_that_was_given_stays_and_is_listed(check):
    ran, report = check("unused.py:of_two_batches --batch 2 --heads 4")
    assert ran.code == 0
    assert report["not_checked"][:2] == ["a third batch (--batch)", "a tenth head (--heads)"]


def test_a_small_case_that_ends_its_process_is_listed(folder):
    words = "check unused.py:ends_its_process --no-recover --json report.json"
    assert run_process(words, GRADPROBE_ISOLATE="1").code == 0
    report = json.loads((folder / "report.json").read_text())
    assert report["not_checked"] == ["grouped heads (--kv-heads)"]
