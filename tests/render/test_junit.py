import pytest

from tests.render.written import (
    FIRST_LINE,
    document,
    entry,
    failed,
    faulty,
    form,
    head,
    many_heads,
    read_junit,
    run,
    with_memory,
)


def cases_of(*documents):
    return read_junit(form("--junit", *documents)).findall(".//testcase")


def case_of(cases, name, group="distinct"):
    named = [one for one in cases if one.get("name") == name]
    (found,) = [one for one in named if one.get("classname").endswith(group)]
    return found


def outcomes(cases):
    """(class name, name, what became of it, its type) of every case that did not pass."""
    wrong = [one for one in cases if len(one)]
    return [
        (one.get("classname"), one.get("name"), one[0].tag, one[0].get("type")) for one in wrong
    ]


def test_a_faulty_check_is_a_case_a_head_and_layout_and_an_identity_that_say_where_and_why():
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
    first, second = (case_of(cases, f"{name} batch 0 head 1")[0] for name in ("dP", "dV"))
    assert first.get("message") == FIRST_LINE
    lines = first.text.splitlines()
    assert lines[:2] == [
        "9 elements wrong, worst 51x what is allowed, rows 0-4, 7-10",
        "dP is wrong by itself: its own inputs do not explain it.",
    ]
    assert lines[-2:] == ["Again: gradprobe check lazy", "at: targets/mine.py:12 lazy"]
    worst = "9 elements wrong, worst {} what is allowed"
    told = f"dV is wrong by itself: {worst.format('3e8x')}, rows"
    assert second.get("message").startswith(told)
    assert "at: kernels/lazy.py:251 lazy_dkdv_kernel" in second.text
    inherited = case_of(cases, "dS batch 0 head 1")[0]
    assert inherited.get("message").startswith(f"dS only inherits: {worst.format('900x')}")
    assert "dS only inherits: it is wrong, but right given its wrong inputs." in inherited.text
    refused = case_of(cases, "layout", "do=expanded")[0]
    assert refused.get("message") == "AssertionError: do must be contiguous"
    broken = case_of(cases, "I4")[0]
    assert broken.get("message").startswith(
        "FIRST MISMATCH I4 batch=- head=- row=- col=- tile=-,- "
    )
    assert (
        "I4 <V, dV> = <O, dO> is off by 2.5, 2.50x what is allowed in distinct." in broken.text
    )


AT = {"file": "/repository/kernels/lazy.py", "line": 204, "code": "x"}
EDIT = {
    "matches": True, "words": "with it all matches", "file": AT["file"], "tried": 6,
    "diff": "--- lazy.py\n+++ lazy.py\n@@ -204,1 +204,1 @@\n-    h * stride_qh\n+    h * stride_doh",
}  # fmt: skip
CAUSE = {
    "fault": "load/do", "class": "S1", "summary": "dO is misread", "explained": 1.0, "edit": EDIT,
    "where": [AT], "seen": "seen, 4 of 4 tiles",
}  # fmt: skip


def test_what_is_wrong_has_the_cause_and_what_inherits_names_it():
    cases = cases_of(faulty() | {"diagnoses": [CAUSE]})
    other, inherited = (
        case_of(cases, f"{name} batch 0 head 1")[0].text for name in ("dV", "dS")
    )
    words = "Cause: dO is misread (seen, 4 of 4 tiles). Fix, tried: with it all matches: the cause is"
    assert words in other
    assert "at: kernels/lazy.py:204 x" in other
    assert "It comes from load/do (dO is misread)." in inherited


def test_a_check_that_failed_is_an_error_and_what_nothing_accounts_for_a_failure():
    cases = cases_of(failed("Crash", "it raised", target={"name": "mine.py:f"}))
    assert outcomes(cases) == [("mine.py:f", "check", "error", "Crash")]
    assert cases[0][0].get("message") == "it raised"
    again = "Again: gradprobe check --heads 0"
    told = ["it raised", "give at least one", again, "at: mine.py f"]
    assert cases[0][0].text.splitlines() == told
    silent = document(run("contiguous", entry("dP", head(0))), verdict="mismatch")
    assert outcomes(cases_of(silent)) == [("lazy", "verdict", "failure", "mismatch")]


@pytest.mark.parametrize(
    "documents",
    [[], [faulty(), failed(), many_heads(), with_memory("race")]],
    ids=["none", "four"],
)
def test_counts_and_times_add_up_at_every_level(documents):
    root = read_junit(form("--junit", *documents))
    suites = root.findall("testsuite")
    for suite, of in zip(suites, documents, strict=True):
        tags = [one[0].tag if len(one) else "" for one in suite.findall("testcase")]
        told = [int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")]
        assert told == [len(tags), *map(tags.count, ("failure", "error", "skipped"))]
        assert float(suite.get("time")) == round(of.get("seconds", {}).get("total", 0.0), 3)
    for name in ("tests", "failures", "errors", "time"):
        total = sum(float(suite.get(name)) for suite in suites)
        assert float(root.get(name)) == pytest.approx(total)


def test_no_two_cases_go_by_one_name_and_memory_is_a_failure_at_its_line():
    documents = [faulty(), faulty(), faulty(title="gqa"), failed(), with_memory("race", "race")]
    cases = cases_of(*documents)
    names = [(one.get("classname"), one.get("name")) for one in cases]
    assert len(set(names)) == len(names)
    assert {name.split(".")[0] for name, _ in names} == {
        "lazy", "lazy (2)", "lazy (gqa)", "lazy (3)", "gradprobe",
    }  # fmt: skip
    first, second = [one for one in cases if one.get("classname") == "lazy (3).memory"]
    assert second.get("name") == "race do in lazy_dkdv_kernel (2)"
    assert "at: kernels/lazy.py:270 tl.load(do_ptrs)" in first[0].text
