"""A probe of a case and a target that a test made itself, as they are."""

from unittest.mock import patch

from gradprobe.inputs.history import CheckRequest
from gradprobe.inputs.saved import SavedInputs
from gradprobe.model.allowance import Client
from gradprobe.model.case import Case
from gradprobe.numerics.evidence import ProbeResult
from gradprobe.pipeline import probe as probing
from gradprobe.pipeline.resolve import Problem
from gradprobe.targets.find import Target


def probe(
    case: Case,
    target: Target,
    *,
    reference: Target | None = None,
    saved: SavedInputs | None = None,
    why: bool = True,
    client: Client = Client(),  # noqa: B008 - it is frozen
) -> ProbeResult:
    """Runs a target on a case, and on no other that it may take in its place; `why` is whether a reason is sought."""
    request = CheckRequest(target.name, case.family, None, {"seqlen": case.seqlen_q})
    problem = Problem(case, target, reference, saved, request, frozenset())
    explained = probing._explained if why else lambda experiment, report, *rest: report
    with (
        patch.object(probing, "fit", lambda trial: None),
        patch.object(probing, "_explained", explained),
    ):
        report, _ = probing.probed(problem, "", client)
    return report
