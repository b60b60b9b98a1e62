"""The pytest plugin, in runs of pytest of their own: fixture, marker, and what it leaves alone."""

import pytest

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

    @pytest.mark.gradprobe("soft.py:backward", **SMALL)
    def test_that_never_checks(check_backward): ...
"""
)
FIRST = "FIRST MISMATCH dQ batch=0 head=1 row=0 col=0 tile=0,- "


def test_a_run_fails_by_the_mismatches_alone_and_with_the_line_of_the_test(project):
    project.makepyfile(test_mixed=MIXED)
    project.makeini("[pytest]\npythonpath = .\n")
    words = ["--strict-markers", "--strict-config", "-W", "error"]
    ran = project.runpytest_subprocess(*words)
    ran.assert_outcomes(passed=4, failed=5)
    out = ran.stdout.str()
    ran.stdout.fnmatch_lines_random([
        ">       assert_backward_matches(doubled_dq, [*][*]SMALL)",
        "E       AssertionError: MISMATCH  dQ is the first wrong intermediate in head 1 of 2 (soft.py:doubled_dq,*",
        "E * again: gradprobe check soft.py:doubled_dq --batch 1 --heads 2 --seqlen 20 --head-dim 8",
        ">       raise ValueError(*the target says no*)",
        "E       ValueError: the target says no",
        "soft.py:*: ValueError",
        ">       check_backward(raising, [*][*]SMALL)",
        "nothing was compared: a test marked gradprobe asks for check_backward and does not call it",
        "E       gradprobe.model.failures.Refusal: target 'soft.py:raising' raised ValueError (contiguous): the *",
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

    def test_of_the_module(check_backward):
        with pytest.raises(AssertionError, match="soft.py:doubled_dq"):
            check_backward()
    """)  # fmt: skip
    project.runpytest_subprocess("--strict-markers").assert_outcomes(passed=3)


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
