"""A bench of a target, and its trials by their titles."""

from gradprobe.commands.strides.bench import Bench
from gradprobe.commands.strides.trials import trials_of
from gradprobe.inputs.history import CheckRequest
from gradprobe.pipeline.resolve import resolve_problem


def bench_for(word, **options):
    return Bench(resolve_problem(CheckRequest(word, None, None, options)))


def trials_for(bench, fast=True):
    strict = bench.experiment.case.strict
    return {trial.title: trial for trial in trials_of(bench.shapes(), fast=fast, strict=strict)}
