"""What is wrong compiled alone is told apart by the same case in the interpreter, in the layout that failed."""

import shlex
from dataclasses import replace

import pytest

from gradprobe.diagnosis.behaviour import Again, multiplies_coarser, right_in_the_interpreter
from gradprobe.diagnosis.layouts import failing_layouts
from gradprobe.pipeline.probe import probe
from gradprobe.probing.experiment import experiment_of
from gradprobe.runtime.arithmetic import Dots
from gradprobe.targets.find import find_target
from tests.cases import softmax_case

SMALL = {"batch": 1, "heads": 1, "kv_heads": 1, "seqlen_q": 20, "seqlen_k": 20, "head_dim": 16, "head_dim_v": 16}
WORDS = ["--batch", "1", "--heads", "1", "--seqlen", "20", "--head-dim", "16"]
ON_A_GPU = "os.environ.get('CUDA_VISIBLE_DEVICES') != ''"


def compiled(folder, monkeypatch, fault, factor=2):
    """Runs of a kernel that is said to be compiled, which is wrong under a condition."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    file = folder / "kernel.py"
    file.write_text(f"""
import os

def backward(q, k, v, do, *, scale):
    p = (scale * q @ k.mT).softmax(-1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    return {{"dQ": scale * ds @ k, "dK": scale * ds.mT @ q * ({factor} if {fault} else 1), "dV": p.mT @ do}}
""")
    case, kernel = softmax_case(**SMALL, recover=False), find_target(f"{file}:backward", "softmax")
    # Runs in the command line that are none of those asked about.
    command = shlex.join(["gradprobe", "check", f"{file}:backward", *WORDS, "--runs", "distinct"])
    experiment = replace(experiment_of(case, kernel, command=command), backends=frozenset({"triton"}))
    failing = [run for run in probe(case, kernel, why=False).runs if not run.matches]
    return [Again(experiment, one.run.assigned, one.seen) for one in failing_layouts(experiment, failing)]


def test_it_is_told_with_what_it_rules_out_in_a_layout_in_which_the_interpreter_is_right(tmp_path, monkeypatch):
    expanded = compiled(tmp_path, monkeypatch, f"{ON_A_GPU} and do.stride(3) == 0")
    found = right_in_the_interpreter(expanded[0])
    assert (found.fault, found.explained) == ("compiler/dK", 1.0)
    same, left = found.evidence
    assert same == "the same case in do=expanded matches with --device cpu: no formula, mask or address is wrong"
    assert "pipelining" in left


def test_dots_that_were_compiled_coarser_than_declared_are_the_cause_where_they_are_enough(tmp_path, monkeypatch):
    for factor, is_enough in ((1 + 2**-12, True), (2, False)):
        (again, *_) = compiled(tmp_path, monkeypatch, "True", factor=factor)
        of, dots = again.experiment, (Dots("tf32", "dkdv_kernel", str(tmp_path / "kernel.py"), (7,)),)
        declared = replace(of, case=replace(of.case, device="cuda", dots="ieee"), dots=dots)
        found = multiplies_coarser(replace(again, experiment=declared))
        assert bool(found) == is_enough
        undeclared = replace(declared, case=replace(declared.case, dots=None))
        assert multiplies_coarser(replace(again, experiment=undeclared)) is None
        if found:
            assert (found.fault, found.where[0].line, found.where[0].code) == (
                "precision/tf32",
                7,
                "ds = p * (dp - (p * dp).sum(-1, keepdim=True))",
            )
            assert found.evidence[0] == "compiled: tf32 in dkdv_kernel (kernel.py:7)"


@pytest.mark.parametrize("fault", [pytest.param("True", marks=pytest.mark.nightly), "do.stride(3) == 0"])
def test_it_is_not_where_the_interpreter_is_wrong_in_that_layout_too(tmp_path, monkeypatch, fault):
    (*_, expanded) = compiled(tmp_path, monkeypatch, fault)
    assert right_in_the_interpreter(expanded) is None
