"""Small checks for tests of suites, and the rounds of batteries of targets that are told of as predicates."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from gradprobe.commands.suite.battery import Battery
from gradprobe.commands.suite.case_factors import factors_of
from gradprobe.commands.suite.plan import PlannedCheck, TargetSignature
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.case import Case

SMALL = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8}


def planned(target, title=None, **options):
    request = CheckRequest(target, None, None, {**SMALL, **options})
    return PlannedCheck(target if title is None else title, request)


NAMES = frozenset({"q", "k", "v", "causal", "window", "scale"})
TAKES = TargetSignature("softmax", NAMES, frozenset())


@dataclass
class Ended:
    """What came of all rounds: the titles of each, and the options of each case by its title."""

    battery: Battery
    rounds: list[list[str]] = field(default_factory=lambda: [[]])
    options: dict = field(default_factory=dict)

    @property
    def coverage(self):
        return self.battery.plan.coverage


def ended(verdict=lambda options: "match", case=None, takes=TAKES, *, is_quick=False):
    """All rounds of a target of which `verdict` says match, mismatch, refused or warning, by its options."""
    request = CheckRequest("t", None, None, {})
    battery = Battery(factors_of(takes), request, is_quick=is_quick)
    found, todo = Ended(battery), [*battery.plan.checks]
    for check in todo:
        title, options = check.title.removeprefix("battery: "), check.request.options
        found.rounds[-1].append(title)
        found.options[title] = options
        if added := battery.plan.add(came(check.title, verdict(options), case)):
            todo += added
            found.rounds.append([])
    return found


def came(title, word, case):
    verdict = {"refused": "error", "warning": "error"}.get(word, word)
    case, own = case or Case("softmax"), {"title": title, "verdict": verdict}
    report = SimpleNamespace(verdict=verdict, is_warning=word == "warning", case=case)
    return SimpleNamespace(**own, is_refused=word == "refused", report=report)
