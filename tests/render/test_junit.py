"""JUnit XML: Jenkins' schema takes it, its counts and times add up at every level, and no text breaks it."""

import math

import pytest

from gradprobe.render.junit import as_junit
from tests.render.written import (
    BASE,
    FIRST_LINE,
    ODD,
    document,
    entry,
    failed,
    faulty,
    head,
    invariant,
    many_heads,
    read_junit,
    reports,
    run,
    with_memory,
)


def cases_of(*documents):
    return read_junit(as_junit(reports(*documents), BASE)).findall(".//testcase")


def case_of(cases, name, group="distinct"):
    (found,) = (
        one for one in cases if one.get("name") == name and one.get("classname").endswith(group)
    )
    return found


def outcomes(cases):
    """(class name, name, what became of it, its type) of every case that did not pass."""
    return [
        (one.get("classname"), one.get("name"), one[0].tag, one[0].get("type"))
        for one in cases
        if len(one)
    ]


def test_a_faulty_check_is_a_case_a_head_and_layout_and_an_identity():
    cases = cases_of(faulty())
    assert len(cases) == 6 + (1 + 2 + 2 + 2 + 2) + 2 + 1
    assert outcomes(cases) == [
        ("lazy.distinct", "LSE", "skipped", "not exposed"),
        ("lazy.distinct", "dP batch 0 head 1", "failure", "mismatch"),
        ("lazy.distinct", "dS batch 0 head 1", "failure", "inherited"),
        ("lazy.distinct", "dV batch 0 head 1", "failure", "mismatch"),
        ("lazy.distinct", "dTau head 1", "failure", "inherited"),
        ("lazy.distinct", "I4", "failure", "identity"),
        ("lazy.do=expanded", "layout", "skipped", "refused"),
    ]


def test_messages_say_where_and_whether_it_is_inherited_and_how_to_repeat_it():
    cases = cases_of(faulty())
    first, second = case_of(cases, "dP batch 0 head 1")[0], case_of(cases, "dV batch 0 head 1")[0]
    assert first.get("message") == FIRST_LINE
    assert first.text.splitlines() == [
        "9 elements wrong, worst 51x what is allowed, rows 0-4, 7-10",
        "inherited: no: its own inputs do not explain it",
        "at: targets/mine.py:12 lazy",
        "again: gradprobe check lazy",
    ]
    assert second.get("message").startswith(
        "dV is wrong by itself: 9 elements wrong, worst 3e8x what is allowed, rows"
    )
    assert "at: kernels/lazy.py:251 lazy_dkdv_kernel" in second.text
    inherited = case_of(cases, "dS batch 0 head 1")[0]
    assert inherited.get("message").startswith(
        "dS only inherits: 9 elements wrong, worst 900x what is allowed"
    )
    assert "inherited: yes: right given its wrong inputs" in inherited.text
    assert case_of(cases, "LSE")[0].get("message") == "not exposed"
    assert (
        case_of(cases, "layout", "do=expanded")[0].get("message")
        == "AssertionError: do must be contiguous"
    )
    assert (
        case_of(cases, "I4")[0].get("message")
        == "I4 <V, dV> = <O, dO> is off by 2.5, 2.50x what is allowed"
    )


EDIT = {
    "matches": True,
    "words": "with it all matches",
    "file": "/repository/kernels/lazy.py",
    "tried": 6,
}
EDIT |= {
    "diff": "--- lazy.py\n+++ lazy.py\n@@ -204,1 +204,1 @@\n-    h * stride_qh\n+    h * stride_doh"
}
CAUSE = {
    "fault": "load/do",
    "class": "S1",
    "summary": "dO is misread",
    "explained": 1.0,
    "edit": EDIT,
}
CAUSE |= {
    "where": [{"file": "/repository/kernels/lazy.py", "line": 204, "code": "x"}],
    "seen": "seen, 4 of 4 tiles",
}


def test_the_first_mismatch_and_the_suite_have_the_cause_as_in_the_terminal_with_the_edit():
    suite = read_junit(as_junit(reports(faulty() | {"diagnoses": [CAUSE]}), BASE)).find("testsuite")
    first, other, inherited = (
        case_of(suite.findall("testcase"), f"{name} batch 0 head 1")[0].text
        for name in ("dP", "dV", "dS")
    )
    for text in (first, suite.find("system-out").text):
        assert "CAUSE  dO is misread (load/do)" in text
        assert "  + h * stride_doh" in text[text.index("FIX, tried: with it all matches") :]
    assert (
        "Cause: dO is misread (seen, 4 of 4 tiles). Fix, tried: with it all matches: the cause is"
        in other
    )
    assert "at: kernels/lazy.py:204 x" in other
    assert "misread" not in inherited
    assert read_junit(as_junit(reports(faulty()), BASE)).find(".//system-out") is None


def test_no_kernel_is_blamed_for_what_only_inherits():
    own, inherited = (
        cases_of(document(run("distinct", entry("dK", head(0, status=status)))))[0][0].text
        for status in ("mismatch", "inherited")
    )
    assert "at: kernels/lazy.py:251 lazy_dkdv_kernel" in own
    assert "at: targets/mine.py:12 lazy" in inherited


def test_a_broken_identity_alone_is_the_greppable_line():
    broken = document(
        run("distinct", entry("dP", head(0)), invariants=[invariant("I4 <V, dV> = <O, dO>", False)])
    )
    assert outcomes(cases_of(broken)) == [("lazy.distinct", "I4", "failure", "identity")]
    assert cases_of(broken)[1][0].get("message") == (
        "FIRST MISMATCH I4 batch=- head=- row=- col=- tile=-,- actual=2.5 expected=0 ratio=2.50x"
    )


def test_an_identity_tried_twice_is_one_case_that_fails_where_either_does():
    repeats = [invariant("repeat same call, same results", holds) for holds in (True, False, True)]
    of_reference = invariant("I2 sum_j dK = 0", False, of="reference")
    cases = cases_of(
        document(run("distinct", entry("dP", head(0)), invariants=[*repeats, of_reference]))
    )
    assert [one.get("name") for one in cases] == ["dP batch 0 head 0", "repeat"]
    assert outcomes(cases) == [("lazy.distinct", "repeat", "failure", "identity")]


def test_what_is_not_finite_is_said_so():
    first = {"intermediate": "dK", "batch": 0, "head": 0, "row": 3, "col": 2, "tile": [None, 0], "actual": None,
             "expected": 0.5, "budget": 1e-5, "masked": None}  # fmt: skip
    wrong = head(0, status="mismatch", max_budget_ratio=None)
    bad = entry("dK", wrong | {"max_budget_ratio": 0.0}) | {
        "heads": [wrong],
        "max_budget_ratio": None,
    }
    (case,) = cases_of(document(run("distinct", bad, first_mismatch=first)))
    assert case[0].get("message") == (
        "FIRST MISMATCH dK batch=0 head=0 row=3 col=2 tile=-,0 actual=non-finite expected=0.5 ratio=infx"
    )
    assert "worst infx what is allowed" in case[0].text


@pytest.mark.parametrize("kind", ["UsageFailure", "TargetFailure", "Crash", "Timeout", "Failure"])
def test_a_check_that_failed_is_one_error(kind):
    cases = cases_of(failed(kind, "it raised", target={"name": "mine.py:f"}))
    assert outcomes(cases) == [("mine.py:f", "check", "error", kind)]
    assert cases[0][0].get("message") == "it raised"
    assert cases[0][0].text.splitlines() == [
        "it raised",
        "give at least one",
        "again: gradprobe check --heads 0",
    ]


def test_a_layout_that_came_to_an_error_is_one_error_among_the_rest():
    crashed = run(
        "packed", verdict="error", error={"kind": "Crash", "message": "killed by signal 11"}
    )
    cases = cases_of(document(run("contiguous", entry("dP", head(0))), crashed))
    assert outcomes(cases) == [("lazy.packed", "layout", "error", "Crash")]
    assert len(cases) == 2


def test_memory_findings_are_failures_at_their_own_lines():
    cases = cases_of(with_memory("outside", "guard", "unwritten", "race", "race"))
    assert [one[:3] for one in outcomes(cases)] == [
        ("lazy.memory", f"{kind} do in lazy_dkdv_kernel{again}", "failure")
        for kind, again in (
            ("outside", ""),
            ("guard", ""),
            ("unwritten", ""),
            ("race", ""),
            ("race", " (2)"),
        )
    ]
    assert "at: kernels/lazy.py:270 tl.load(do_ptrs)" in cases[1][0].text


def test_a_mismatch_that_nothing_accounts_for_is_still_a_failure():
    silent = document(run("contiguous", entry("dP", head(0))), verdict="mismatch")
    assert outcomes(cases_of(silent)) == [("lazy", "verdict", "failure", "mismatch")]


def counts(element, *names):
    return [int(element.get(name)) for name in names]


@pytest.mark.parametrize(
    "documents",
    [[], [faulty()], [faulty(), failed(), document(run("contiguous", entry("dP", head(0))))], [faulty()] * 200,
     [many_heads()], [with_memory("race")]],
    ids=["none", "one", "three", "200", "128 heads", "memory"],
)  # fmt: skip
def test_counts_and_times_add_up_at_every_level(documents):
    root = read_junit(as_junit(reports(*documents), BASE))
    suites = root.findall("testsuite")
    assert len(suites) == len(documents)
    for suite, of in zip(suites, documents, strict=True):
        cases = suite.findall("testcase")
        tags = [one[0].tag if len(one) else "" for one in cases]
        assert counts(suite, "tests", "failures", "errors", "skipped") == [
            len(cases), tags.count("failure"), tags.count("error"), tags.count("skipped"),
        ]  # fmt: skip
        whole = of.get("seconds", {}).get("total", 0.0)
        assert float(suite.get("time")) == pytest.approx(whole, abs=5e-4)
        assert math.fsum(float(one.get("time")) for one in cases) == pytest.approx(
            float(suite.get("time")), abs=1e-9
        )
    for name in ("tests", "failures", "errors"):
        assert int(root.get(name)) == sum(int(suite.get(name)) for suite in suites)
    assert float(root.get("time")) == pytest.approx(
        math.fsum(float(one.get("time")) for one in suites), abs=1e-9
    )


def test_no_two_cases_of_several_checks_go_by_one_name():
    documents = [
        faulty(),
        faulty(),
        faulty(title="gqa"),
        failed(),
        failed(title="gqa"),
        with_memory("race", "race"),
    ]
    names = [(one.get("classname"), one.get("name")) for one in cases_of(*documents)]
    assert len(set(names)) == len(names)
    assert {name.split(".")[0] for name, _ in names} == {
        "lazy", "lazy (2)", "lazy (gqa)", "lazy (3)", "gradprobe", "gradprobe (gqa)",
    }  # fmt: skip


def test_128_heads_of_9_intermediates_in_3_layouts_are_6912_cases():
    assert len(cases_of(many_heads())) == 2 * 128 * 9 * 3


def test_every_text_may_hold_every_character():
    odd = failed("TargetFailure", ODD, title=ODD, reproduce=ODD, target={"name": f"{ODD}.py:f"})
    skipped = document(run(ODD, verdict="skipped", skipped=ODD), title=ODD)
    skipped["target"] = {"name": ODD, "file": f"/repository/{ODD}.py", "line": 1, "kernels": []}
    root = read_junit(as_junit(reports(odd, skipped), BASE))
    message = root.findall(".//error")[0].get("message")
    for shown in (
        "]]>",
        "<&\"'>",
        "é 漢 😀",
        r"\x00",
        r"\x1b",
        r"\ud800",
        r"\uffff",
        r"\U0001fffe",
        r"\x85",
        "\t",
        "\n",
    ):
        assert shown in message
    assert root.findall(".//skipped")[0].get("message") == message
    assert message in root.findall(".//error")[0].text


def test_a_suite_names_its_target_and_kernels_with_their_lines():
    properties = {
        one.get("name"): one.get("value")
        for one in read_junit(as_junit(reports(faulty()), BASE)).findall(".//property")
    }
    assert properties == {
        "name": "lazy", "backend": "triton", "reproduce": "gradprobe check lazy", "file": "targets/mine.py",
        "line": "12",
        "kernel lazy_forward_kernel": "kernels/lazy.py:56", "kernel lazy_dkdv_kernel": "kernels/lazy.py:251",
    }  # fmt: skip
