"""A bench of a target, and its trials by their titles."""

from gradprobe.commands.suite.checking import Setting
from gradprobe.commands.suite.tries import PlannedTry, TryChecker
from gradprobe.commands.survey import Survey, planned, trials_of
from gradprobe.inputs.history import CheckRequest


class Bench:
    def __init__(self, word, **options):
        words = {**options, "recover": False, "layout": ["all=contiguous"]}
        first = PlannedTry("", CheckRequest(word, None, None, words), fixed=frozenset(options))
        self._make, self._survey = TryChecker(Setting(isolate=False)), Survey(False, 0.0)
        self.first = self._survey.first = self._make(first)

    def run(self, trial):
        survey = self._survey
        survey.trials = (*survey.trials, trial)
        survey.came[trial.title] = self._make(planned(self.first, trial))
        for again in survey.again([trial]):
            survey.came[again.title] = self._make(again)
        return survey.run(trial)


def bench_for(word, **options):
    return Bench(word, **options)


def trials_for(bench, fast=True):
    report = bench.first.report
    shapes = {laid.name: laid.sizes for laid in report.runs[0].laid}
    trials = trials_of(shapes, fast=fast, strict=report.case.strict)
    return {trial.title: trial for trial in trials}
