"""Sweeps that are killed, torn and resumed: the same checks in the same order, none of them made twice."""

import errno
import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from gradprobe.commands.suite.checking import Setting
from gradprobe.commands.suite.journal import (
    DEFAULT,
    Journal,
    SweepRequest,
    combinations,
    sweep_plan,
)
from gradprobe.commands.suite.outcome import CheckOutcome
from gradprobe.commands.suite.runner import Runner
from gradprobe.inputs.history import CheckRequest, digest_of
from gradprobe.model.failures import UsageFailure
from gradprobe.model.report import CheckedTarget, Report

REQUEST = CheckRequest("soft.py:backward", None, None, {"batch": 1})
LONG = SweepRequest((REQUEST,), {"heads": [1, 2, 3], "seqlen": [9, 20, 33, 40]})
GRID = SweepRequest((REQUEST,), {"heads": [1, 4, 2], "seqlen": [90, 9]})


def made(planned, number):
    more = {"target": CheckedTarget(name="t"), "sources": {"soft.py": digest_of("soft.py")}}
    report = Report(title=planned.title, number=number, verdict="match", **more)
    return CheckOutcome(planned.request, report)


class Bench:
    """Makes checks, each pair the other way round as two workers may, until it is killed."""

    def __init__(self, until=1 << 30, end=KeyboardInterrupt):
        self.seen, self._until, self._end = [], until, end

    def __call__(self, plan):
        number = 0
        while number < len(plan):
            for at in sorted(range(number, min(number + 2, len(plan))), reverse=True):
                if len(self.seen) == self._until:
                    raise self._end
                self.seen.append(plan[at].title)
                yield made(plan[at], at)
            number += 2


def run(asked, journal, bench, told=lambda words, share: None):
    runner, found = Runner(sweep_plan(asked), Setting(), journal), []
    runner._check_each = bench
    try:
        for outcome in runner.outcomes(told):
            found.append((outcome.report.number, outcome.title))
    except (KeyboardInterrupt, MemoryError):
        pass
    return found


@pytest.mark.parametrize(("asked", "killed_after"), [(LONG, 5), (GRID, 1)])
def test_killed_and_resumed_it_gives_what_it_gives_whole(asked, killed_after):
    whole, first, rest = Bench(), Bench(killed_after, MemoryError), Bench()
    with Journal.begun(asked, "whole.jsonl") as journal:
        expected = run(asked, journal, whole)
    with Journal.begun(asked, "part.jsonl") as journal:
        assert run(asked, journal, first) == expected[: killed_after // 2 * 2]
    with open("part.jsonl", "a", encoding="utf-8") as file:
        file.write('{"schema": "gradprobe.report/2", "title": "' + "long " * 10_000)
    with Journal.reopened("part.jsonl") as journal:
        assert run(journal.asked, journal, rest) == expected
    assert sorted(first.seen + rest.seen) == sorted(whole.seen), "none twice"
    lines = list(map(json.loads, Path("part.jsonl").read_text().splitlines()))
    assert sorted(line["title"] for line in lines[1:]) == sorted(whole.seen)


def test_a_grid_is_made_by_what_it_costs_and_numbered_as_it_was_given():
    shares = []
    with Journal.begun(GRID, None) as journal:
        found = run(GRID, journal, Bench(), lambda words, share: shares.append((words, share)))
    titles = ["H=1 L=90", "H=1 L=9", "H=4 L=90", "H=4 L=9", "H=2 L=90", "H=2 L=9"]
    assert sorted(found) == list(enumerate(titles))
    assert (found[0][1], found[-1][1]) == ("H=1 L=9", "H=4 L=90")
    # Cases that cost more take more of the time that is left.
    assert shares[0][0] == "1 of 6 made"
    assert shares[2][1] < 0.4
    assert shares[-1] == ("6 of 6 made", 1.0)


def test_what_is_no_journal_or_of_another_source_is_refused(folder, monkeypatch):
    with Journal.begun(LONG, "a.jsonl") as journal:
        run(LONG, journal, Bench(3))
        with pytest.raises(UsageFailure, match="another sweep writes it"):
            Journal.begun(LONG, "a.jsonl")
    (folder / "soft.py").write_text((folder / "soft.py").read_text() + "\n")
    with pytest.raises(UsageFailure, match="soft.py has changed since"):
        Journal.reopened("a.jsonl")
    with pytest.raises(UsageFailure, match="cannot be opened, No such file"):
        Journal.reopened("none.jsonl")
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks")))
    with pytest.raises(UsageFailure, match="cannot be opened, No locks"):
        Journal.begun(LONG, "b.jsonl")


def test_a_sweep_beside_another_of_its_folder_keeps_no_journal_and_an_interrupt_what_came_behind_a_gap_too():
    with Journal.begun(LONG, None) as one, Journal.begun(LONG, None) as other:
        assert (one.file, other.file) == (str(DEFAULT), "")
        assert len(run(LONG, one, Bench(5))) == 5


def test_combinations_are_all_of_them_and_the_last_option_varies_fastest():
    assert combinations({"heads": [1, 3], "dtype": ["float32", "float16"]}) == [
        {"heads": 1, "dtype": "float32"}, {"heads": 1, "dtype": "float16"},
        {"heads": 3, "dtype": "float32"}, {"heads": 3, "dtype": "float16"},
    ]  # fmt: skip
    assert len(combinations({"heads": range(100), "seed": range(100)})) == 10_000
    with pytest.raises(UsageFailure, match="10,100 cases are more than 10,000"):
        combinations({"heads": range(100), "seed": range(101)})
