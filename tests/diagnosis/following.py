"""A target of the planted faults, followed in the interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradprobe.diagnosis.follow import Followed, followed_run
from gradprobe.model.assignment import parse_layout
from gradprobe.probing.experiment import experiment_of
from gradprobe.runtime.backend import prepare_backend
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.planted.trials import TARGETS

SMALL = {"batch": 1, "heads": 2, "seqlen": 36, "head_dim": 16}


def followed(of: str, layout: str, options: dict[str, Any], file: Path | None = None) -> Followed:
    prepare_backend("auto")
    source, function, _ = TARGETS[of]
    case = (lazy_case if of == "lazy" else softmax_case)(**{**SMALL, **options})
    run = followed_run(experiment_of(case, find_target(f"{file or source}:{function}")), (parse_layout(layout),))
    assert run is not None
    assert not run.flow.failures
    return run
