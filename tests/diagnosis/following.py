"""A target of the planted faults, followed in the interpreter."""

from gradprobe.diagnosis.follow import followed_run
from gradprobe.model.assignment import parse_layout
from gradprobe.probing.experiment import experiment_of
from gradprobe.runtime.backend import prepare_backend
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.planted.planting import TARGETS, Planted, edited, file_of

SMALL = {"batch": 1, "heads": 2, "seqlen": 36, "head_dim": 16}


def followed_edit(folder, edit, **options):
    """tests/strangers' `grouped` with an edit in its text, as kernel.py of a folder: the text, and its run."""
    source, file = edited(file_of("grouped").read_text(), (edit,)), folder / "kernel.py"
    file.write_text(source)
    prepare_backend("auto")
    case = softmax_case(**{"batch": 1, "seqlen_q": 20, "seqlen_k": 20, "head_dim": 8, **options})
    begun = experiment_of(case, find_target(f"{file}:grouped"))
    return source, followed_run(begun, (parse_layout("contiguous"),))


def followed(of, layout, options, file=None):
    prepare_backend("auto")
    source, function, _ = TARGETS[of]
    case = (lazy_case if of == "lazy" else softmax_case)(**{**SMALL, **options})
    begun = experiment_of(case, find_target(f"{file or source}:{function}"))
    run = followed_run(begun, (parse_layout(layout),))
    assert not run.flow.failures
    return run


def planted(folder, *edits, layout="contiguous", **options):
    """The kernels of flash, or of lazy, with edits: them, and their run."""
    of = "flash" if edits[0].kernel.startswith("flash") else "lazy"
    changed, file = Planted("planted", of, edits), folder / "planted.py"
    file.write_text(changed.plant())
    return changed, followed(of, layout, options, file)
