"""The pytest plugin, in runs of pytest of their own: fixture, marker, JUnit properties, and what it leaves alone."""

import xml.etree.ElementTree as ElementTree

import pytest

from gradprobe.targets.builtin import has_driver

pytest_plugins = ["pytester"]

HEAD = """
    import pytest
    from gradprobe.testing import assert_backward_matches
    from soft import backward, doubled_dq, raising, attention

    SMALL = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8}
"""
MIXED = (
    HEAD
    + """
    def test_function_right():
        assert assert_backward_matches(backward, **SMALL).verdict == "match"

    def test_function_wrong():
        assert_backward_matches(doubled_dq, **SMALL)

    @pytest.mark.parametrize("seed", [0, 1])
    def test_fixture_right(check_backward, seed):
        assert check_backward("lazily.py:backward", **SMALL, seed=seed, layout="do=blhd").case.seed == seed

    def test_fixture_wrong(check_backward):
        check_backward("soft.py:doubled_dq", **SMALL)

    def test_fixture_raising(check_backward):
        check_backward(raising, **SMALL)

    @pytest.mark.gradprobe("soft.py:backward", **SMALL)
    def test_marked_right(): ...

    @pytest.mark.gradprobe("soft.py:doubled_dq", **SMALL)
    def test_marked_wrong(): ...
"""
)
FIRST = "FIRST MISMATCH dQ batch=0 head=1 row=0 col=0 tile=0,- "


def properties(file):
    """The properties of each test case in pytest's JUnit XML."""
    return {
        case.get("name"): {entry.get("name"): entry.get("value") for entry in case.iter("property")}
        for case in ElementTree.parse(file).iter("testcase")
    }  # fmt: skip


def test_a_run_fails_by_the_mismatches_alone_which_stand_in_junit_and_with_the_line_of_the_test(
    project,
):
    project.makepyfile(test_mixed=MIXED)
    project.makeini("[pytest]\npythonpath = .\n")
    words = ["--strict-markers", "--strict-config", "-W", "error", "-rP", "--junitxml=junit.xml"]
    ran = project.runpytest_subprocess(*words)
    ran.assert_outcomes(passed=4, failed=4)
    found = properties(project.path / "junit.xml")
    assert found["test_marked_right"] == {
        "gradprobe_target": "soft.py:backward", "gradprobe_verdict": "match",
        "gradprobe_layouts": "contiguous distinct do=expanded",
    }  # fmt: skip
    for name in ("test_marked_wrong", "test_fixture_wrong"):
        assert found[name]["gradprobe_verdict"] == "mismatch"
        assert found[name]["gradprobe_first_mismatch"].startswith(FIRST)
    assert found["test_fixture_right[1]"]["gradprobe_layouts"] == "do=blhd"
    assert found["test_fixture_raising"] == {}
    out = ran.stdout.str()
    ran.stdout.fnmatch_lines_random([
        ">       assert_backward_matches(doubled_dq, [*][*]SMALL)",
        "E       AssertionError: MISMATCH  dQ is the first wrong intermediate in head 1 of 2 (soft.py:doubled_dq,*",
        "E * again: gradprobe check soft.py:doubled_dq --batch 1 --heads 2 --seqlen 20 --head-dim 8",
        ">       raise ValueError(*the target says no*)",
        "E       ValueError: the target says no",
        "soft.py:*: ValueError",
        ">       check_backward(raising, [*][*]SMALL)",
        "E       gradprobe.model.failures.Refusal: target 'soft.py:raising' raised ValueError (contiguous): the *",
        # What a check that passes compared is in the report.
        "*Captured gradprobe call*", "MATCH  soft.py:backward: 7 intermediates within budget in 3 layouts*",
        "  compared * elements: every one of *",
    ])  # fmt: skip
    assert out.count(FIRST) == out.count("again: gradprobe check soft.py:doubled_dq") == 3
    assert "__tracebackhide__" not in out
    assert "All traceback entries are hidden" not in out
    shown = out.replace(str(project.path), "").partition("short test summary")[0]
    assert "gradprobe/" not in shown.replace("gradprobe/kernels", "")
    marked = out.partition("test_marked_wrong ____")[2].splitlines()[1]
    begins = "MISMATCH  dQ is the first wrong intermediate in head 1 of 2 (soft.py:doubled_dq,"
    assert marked.startswith(begins)


@pytest.mark.nightly
def test_what_a_call_leaves_open_the_nearest_marker_says_then_the_class_then_the_module(project):
    project.makepyfile(HEAD + """
    pytestmark = pytest.mark.gradprobe("soft.py:doubled_dq", batch=1, heads=2, seqlen=20, head_dim=8, seed=1)

    def case_of(report):
        case = report.case
        return report.name, case.heads, case.seqlen_q, case.seed, case.causal

    @pytest.mark.gradprobe("soft.py:backward", heads=3, seed=2)
    class TestIt:
        def test_of_the_class(self, check_backward):
            assert case_of(check_backward()) == ("soft.py:backward", 3, 20, 2, False)

        @pytest.mark.gradprobe(seed=3, causal=True)
        def test_of_its_own(self, check_backward):
            assert case_of(check_backward()) == ("soft.py:backward", 3, 20, 3, True)

        @pytest.mark.gradprobe(target=attention, seed=3)
        def test_of_the_call(self, check_backward):
            assert case_of(check_backward(backward, seed=4, heads=None)) == ("soft.py:backward", 3, 20, 4, False)
            assert case_of(check_backward())[0] == "soft.py:attention"

    def test_of_the_module(check_backward):
        with pytest.raises(AssertionError, match="soft.py:doubled_dq"):
            check_backward()
    """.replace("heads=None", "seqlen=20"))  # fmt: skip
    project.runpytest_subprocess("--strict-markers").assert_outcomes(passed=4)


MARKED = (
    HEAD
    + """
    import unittest

    wrong = pytest.mark.gradprobe("soft.py:doubled_dq", **SMALL)

    @wrong
    class TestOfUnittest(unittest.TestCase):
        def test_in_a_test_case(self):
            raise SystemExit("the body runs after the check")

    @wrong
    @pytest.mark.xfail(raises=AssertionError, strict=True)
    def test_expected_to_fail(): ...

    @wrong
    @pytest.mark.skip
    def test_skipped(): ...

    @pytest.mark.gradprobe(**SMALL)
    def test_without_a_target(): ...

    @pytest.mark.gradprobe("soft.py:backward", "soft.py:attention")
    def test_with_two_targets(): ...

    @pytest.mark.gradprobe("soft.py:backward", head=2)
    def test_with_an_unknown_option(): ...

    @pytest.mark.gradprobe("soft.py:backward", **SMALL)
    def test_that_never_checks(check_backward): ...

    @pytest.mark.gradprobe("soft.py:backward", **SMALL)
    def test_that_skips_before_it_checks(check_backward):
        pytest.skip("today")

    @pytest.mark.gradprobe("soft.py:backward", **SMALL)
    def test_whose_body_fails_after_a_match():
        raise AssertionError("of its own")

    def test_unmarked_that_never_checks(check_backward): ...
"""
)


@pytest.mark.nightly
def test_no_marker_is_there_in_vain(project):
    project.makepyfile(MARKED)
    ran = project.runpytest_subprocess("--strict-markers", "-W", "error", "-rA")
    ran.assert_outcomes(failed=6, passed=1, skipped=2, xfailed=1)
    for words in (
        "MISMATCH  dQ is the first wrong intermediate in head 1 of 2 (soft.py:doubled_dq, contiguous)",
        "E   TypeError: nothing to check: neither a call of check_backward nor a marker gradprobe names a target",
        "E   TypeError: the marker gradprobe takes one target, and options by name, got *",
        "E   TypeError: gradprobe knows no option 'head'; did you mean heads or kv_heads or head_dim?",
        "nothing was compared: a test marked gradprobe asks for check_backward and does not call it",
        "E       AssertionError: of its own", "XFAIL *::test_expected_to_fail",
        "PASSED *::test_unmarked_that_never_checks",
    ):  # fmt: skip
        ran.stdout.fnmatch_lines([words])
    assert (
        "the body runs after the check"
        not in ran.stdout.str().partition("short test summary")[0]
    )


LOADED = """
    def pytest_unconfigure(config):
        import sys
        heavy = {"torch", "triton", "numpy", "rich", "typer"} & set(sys.modules)
        own = {name for name in sys.modules if name.split(".")[0] == "gradprobe"}
        if not hasattr(config, "workerinput"):
            print("LOADED", sorted(heavy), sorted(own))
"""
UNRELATED = """
    def test_of_something_else():
        assert 1 + 1 == 2
"""


@pytest.mark.usefixtures("real_processes")
def test_a_run_of_unrelated_tests_loads_the_plugin_and_nothing_else(project):
    project.makeconftest(LOADED)
    project.makepyfile(UNRELATED)
    ran = project.runpytest_subprocess("-W", "error")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        ["LOADED [[]] [[]'gradprobe', 'gradprobe.testing', 'gradprobe.testing.pytest_plugin']"]
    )


KERNEL_AT_THE_TOP = """
    import os
    import triton
    from gradprobe.testing import assert_backward_matches

    def test_it():
        assert os.environ.get("TRITON_INTERPRET") == "{value}"
        assert_backward_matches("lazy", batch=1, heads=1, seqlen=20, head_dim=8, device="cpu")
"""
without_driver = pytest.mark.skipif(
    has_driver(), reason="a CUDA driver is there, so that no default is needed"
)


@without_driver
def test_with_the_setting_triton_interprets_from_the_first_import_on(project):
    project.makeini("[pytest]\ngradprobe_interpret = true\n")
    project.makeconftest("import triton, os\nassert os.environ['TRITON_INTERPRET'] == '1'\n")
    project.makepyfile(KERNEL_AT_THE_TOP.format(value="1"))
    project.runpytest_subprocess("-W", "error", "-n", "1").assert_outcomes(passed=1)


def test_the_setting_changes_nothing_where_there_is_a_driver_or_a_variable(project, monkeypatch):
    project.makeini("[pytest]\ngradprobe_interpret = true\n")
    driver = "from gradprobe.targets import builtin\nbuiltin.has_driver = lambda: True\n"
    project.makepyfile(with_driver=driver)
    test = "import os\ndef test_it():\n    assert os.environ.get('TRITON_INTERPRET') == {}\n"
    project.makepyfile(test.format(None))
    project.runpytest_subprocess("-p", "with_driver").assert_outcomes(passed=1)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    project.makepyfile(test.format("'0'"))
    project.runpytest_subprocess().assert_outcomes(passed=1)
