"""A check that takes long says beforehand what it costs; one that is short says nothing."""

import pytest

from gradprobe.inputs.history import CheckRequest
from gradprobe.pipeline import run_check
from gradprobe.pipeline.resolve import resolve_problem
from gradprobe.processes.resource_limits import VARIABLE


@pytest.fixture
def of(monkeypatch):
    """The words for a case of lazy, whose small runs take so many seconds each."""

    def words(seconds, **options):
        now = iter([0.0, seconds[0], 0.0, seconds[1]])
        monkeypatch.setattr(run_check, "perf_counter", lambda: next(now))
        monkeypatch.setattr(run_check, "_LENGTHS", (16, 32))
        return run_check.cost_in_words(resolve_problem(CheckRequest("lazy", None, None, {"device": "cpu", **options})))

    return words


def test_time_grows_with_the_scores_and_memory_with_the_elements(of, monkeypatch):
    monkeypatch.setenv(VARIABLE, "64G")
    # 3 * 16 * 16 and 3 * 32 * 32 scores: 1 s for 2,304 of them, and there are 3 * 2 * 4,096^2 in three runs.
    assert of((1.0, 2.0), seqlen=4096, head_dim=64) == "6 MiB an input, 3 layouts, about 36.4 h"
    assert of((0.0, 0.001), seqlen=4096, head_dim=64) == "6 MiB an input, 3 layouts, about 2 min"


def test_a_short_check_says_nothing(of):
    assert of((0.0, 0.00001), seqlen=1024) == ""


def test_too_little_memory_is_said_however_short_it_is(of, monkeypatch):
    monkeypatch.setenv(VARIABLE, "3G")
    words = of((0.0, 0.0), seqlen=65536, heads=4, head_dim=256)
    assert words.startswith("512 MiB an input, 3 layouts, about 10 s; it needs 7.5 GiB or more, and may take 3.0 GiB")


def test_what_cannot_run_small_has_no_time(monkeypatch):
    monkeypatch.setenv(VARIABLE, "64G")
    monkeypatch.setattr(run_check, "_LENGTHS", (0, 0))
    request = CheckRequest("lazy", None, None, {"device": "cpu", "seqlen": 4096, "head_dim": 64})
    assert run_check.cost_in_words(resolve_problem(request)) == "6 MiB an input, 3 layouts"


def test_the_command_says_it_on_stderr(monkeypatch, tmp_path):
    from tests.cli.command import run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_check, "_QUICK", 100)
    monkeypatch.setattr(run_check, "_LONG", 0.0)
    ran = run("check sdpa --no-recover")
    assert ran.code == 0
    assert "gradprobe: 0 MiB an input, 3 layouts, about 10 s" in ran.err
