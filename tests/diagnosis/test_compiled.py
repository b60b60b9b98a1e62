"""Dots that were compiled coarser than declared are told apart from what is wrong."""

from dataclasses import replace

from gradprobe.diagnosis.behaviour import FurtherRuns, multiplies_coarser
from gradprobe.diagnosis.causes import failing_layouts
from gradprobe.probing.experiment import experiment_of
from gradprobe.runtime.arithmetic import Dots
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.probe import probe

SMALL = {
    "batch": 1,
    "heads": 1,
    "kv_heads": 1,
    "seqlen_q": 20,
    "seqlen_k": 20,
    "head_dim": 16,
    "head_dim_v": 16,
}


def compiled(folder, factor):
    """Runs of a kernel that is said to be compiled, whose dK is off by a factor."""
    file = folder / "kernel.py"
    file.write_text(f"""
def backward(q, k, v, do, *, scale):
    p = (scale * q @ k.mT).softmax(-1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    return {{"dQ": scale * ds @ k, "dK": scale * ds.mT @ q * {factor}, "dV": p.mT @ do}}
""")
    case, kernel = (
        softmax_case(**SMALL, recover=False),
        find_target(f"{file}:backward", "softmax"),
    )
    experiment = replace(experiment_of(case, kernel), backends=frozenset({"triton"}))
    failing = [run for run in probe(case, kernel, why=False).runs if not run.matches]
    return [
        FurtherRuns(experiment, one.run.assigned, one.seen)
        for one in failing_layouts(experiment, failing)
    ]


def test_dots_that_were_compiled_coarser_than_declared_are_the_cause_where_they_are_enough(
    tmp_path,
):
    for factor, is_enough in ((1 + 2**-12, True), (2, False)):
        (again, *_) = compiled(tmp_path, factor)
        of, dots = (
            again.experiment,
            (Dots("tf32", "dkdv_kernel", str(tmp_path / "kernel.py"), (5,)),),
        )
        declared = replace(of, case=replace(of.case, device="cuda", dots="ieee"), dots=dots)
        found = multiplies_coarser(replace(again, experiment=declared))
        assert bool(found) == is_enough
        undeclared = replace(declared, case=replace(declared.case, dots=None))
        assert multiplies_coarser(replace(again, experiment=undeclared)) is None
        if found:
            assert (found.fault, found.where[0].line, found.where[0].code) == (
                "precision/tf32",
                5,
                "ds = p * (dp - (p * dp).sum(-1, keepdim=True))",
            )
            assert found.evidence[0] == "tf32 in dkdv_kernel (kernel.py:5)"
