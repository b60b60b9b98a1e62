"""The search for coincidences works in a fork: one that ends its process finds nothing, and a slow one says so."""

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


def result(monkeypatch, sought, seconds=30.0):
    monkeypatch.setattr(coincidence, "sought", sought)
    with coincidence.CoincidenceSearch(Ticking(), [], Allowance(9, seconds)) as search:
        return search.result()


def test_what_the_fork_finds_is_the_result(monkeypatch):
    assert result(monkeypatch, lambda *_: ("a line",)) == (("a line",), ())


def test_a_search_that_ends_its_process_finds_nothing(monkeypatch):
    assert result(monkeypatch, lambda *_: os._exit(1)) == ((), ())


def test_a_search_that_is_stopped_says_so(monkeypatch):
    stopped = "the search for coincidences was stopped after 0 s"
    assert result(monkeypatch, lambda *_: time.sleep(60), 0.2) == ((), (stopped,))
