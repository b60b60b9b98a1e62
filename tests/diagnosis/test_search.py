"""The search for coincidences and the work after it share a fork; the work is done here where that came to no end."""

import os
import sys
import time
from dataclasses import dataclass

import pytest

from gradprobe.diagnosis import coincidence
from gradprobe.model.allowance import Allowance

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks work beside a process on Linux alone")


@dataclass(frozen=True)
class Ticking:
    tick: object = None


def worked():
    return (str(os.getpid()),)


def test_the_work_after_it_is_done_in_the_fork(monkeypatch):
    monkeypatch.setattr(coincidence, "sought", lambda *_: ("a line",))
    with coincidence.CoincidenceSearch(Ticking(), [], Allowance(9, 30.0), worked) as search:
        found, done = search.result()
    assert found == ("a line",)
    assert len(done) == 1
    assert done != worked()


def test_the_work_after_it_is_done_here_where_the_search_ends_its_process(monkeypatch):
    monkeypatch.setattr(coincidence, "sought", lambda *_: os._exit(1))
    with coincidence.CoincidenceSearch(Ticking(), [], Allowance(9, 30.0), worked) as search:
        assert search.result() == ((), worked())


def test_a_search_that_is_stopped_says_so(monkeypatch):
    monkeypatch.setattr(coincidence, "sought", lambda *_: time.sleep(60))
    with coincidence.CoincidenceSearch(Ticking(), [], Allowance(9, 0.2), worked) as search:
        assert search.result() == ((), ("the search for coincidences was stopped after 0 s", *worked()))
