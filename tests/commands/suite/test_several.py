import json
from pathlib import Path

import pytest

from gradprobe.cli import checks
from gradprobe.cli.report_forms import Forms
from gradprobe.commands.suite import runner
from gradprobe.commands.suite.check_table import CheckTable
from gradprobe.commands.suite.checking import Setting
from gradprobe.commands.suite.outcome import CheckOutcome
from gradprobe.commands.suite.plan import Plan
from gradprobe.model.failures import INTERRUPTED
from gradprobe.model.layout_run import Element, Head, Intermediate, Run
from gradprobe.model.report import CheckedTarget, Report
from gradprobe.render.terminal import Terminal
from tests.commands.suite.plans import planned

pytestmark = pytest.mark.usefixtures("without_causes")

PLAIN = Setting()
PLAN = [planned("soft.py:backward", "right"), planned("soft.py:doubled_dq", "wrong")]


def check_several(plan, forms, setting):
    return checks.check_several(runner.Runner(Plan([*plan]), setting), forms)


def fake(one, verdict="match"):
    at = {"batch": 0, "head": 1, "row": 2, "col": None, "tile": (None, None)}
    place = Element(intermediate="dQ", actual=2.0, expected=1.0, budget=0.01, **at)
    more = {"status": verdict, "max_budget_ratio": 100.0, "rows": ((2, 2),)}
    heads = tuple(Head(batch=0, head=number, **more) for number in (0, 1))
    counts = {"mismatched": 1, "max_budget_ratio": 100.0, "length": 4, "heads": heads}
    found = (Intermediate(name="dQ", status=verdict, **counts),)
    run = Run(layout="distinct", verdict=verdict, first_mismatch=place, intermediates=found)
    own = {"title": one.title, "verdict": verdict, "target": CheckedTarget(name="t")}
    return CheckOutcome(one.request, Report(**own, runs=(run,), seconds={"total": 1.25}))


def test_the_file_holds_what_came_when_the_rest_is_lost(monkeypatch, folder):
    seen = []

    def dying(plan, *_, **__):
        seen.append(json.loads((folder / "all.json").read_text()))
        yield fake(plan[0])
        seen.append(json.loads((folder / "all.json").read_text()))
        raise KeyboardInterrupt

    (folder / "all.json").write_text("of an older run")
    monkeypatch.setattr(runner, "check_each", dying)
    assert check_several(PLAN, Forms({"--json": "all.json"}), PLAIN) == INTERRUPTED
    seen.append(json.loads((folder / "all.json").read_text()))
    assert [(document["verdict"], len(document["reports"])) for document in seen] == [
        ("incomplete", 0), ("incomplete", 1), ("incomplete", 1),
    ]  # fmt: skip
    assert sorted(path.name for path in folder.glob("*all.json*")) == ["all.json"]


def test_beyond_40_checks_those_that_match_are_counted_only(monkeypatch, capsys):
    plan = [planned("t", f"case {number}") for number in range(60)]
    verdicts = ["mismatch" if number in (7, 50) else "match" for number in range(60)]
    results = [
        fake(*pair).with_report(number=at)
        for at, pair in enumerate(zip(plan, verdicts, strict=True))
    ]
    monkeypatch.setattr(runner, "check_each", lambda *_, **__: iter(results))
    assert check_several(plan, Forms({"--json": "all.json"}, details=True), PLAIN) == 1
    lines = capsys.readouterr().out.splitlines()
    words = "MISMATCH case 7 1.2 dQ batch=0 head=1 row=2 100x, distinct"
    assert lines[1].split() == words.split()
    assert [line.split()[2] for line in lines[1:3]] == ["7", "50"]
    assert lines[3:5] == ["", "case 7:"]
    assert lines[-1].endswith(" s: 58 match, 2 mismatch")
    assert len(json.loads(Path("all.json").read_text())["reports"]) == 60


def test_no_line_is_longer_than_the_terminal_and_none_is_cut_in_a_pipe():
    one = planned("t", "a very long title of a case " * 3)
    for height, end in ((24, "…"), (24, "..."), (None, "")):
        table = CheckTable([one.title], Terminal(40, height, utf8=end == "…"))
        _, line = table.line_of(fake(one, "mismatch").report)
        assert (len(line) <= 40, end in line.plain) == (height is not None, True)
        assert line.plain.endswith(end or "100x, distinct")
