import json
import subprocess
import sys

import pytest
import torch

from tests.cli.command import run_process
from tests.sampling import sampled

# The backward may take dO for contiguous, which a transposed one is not.
ATTENTION = """
import torch

class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, fault):
        p = (scale * q @ k.mT).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale, ctx.fault = scale, fault
        return p @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        if ctx.fault == "stride":
            do = do.as_strided(do.shape, torch.empty(do.shape).stride(), do.storage_offset())
        dp = do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        dk = ctx.scale * ds.mT @ q
        return ctx.scale * ds @ k, dk, p.mT @ do, None, None

def right(q, k, v, scale):
    return Attend.apply(q, k, v, scale, "")

def do_contiguous(q, k, v, scale):
    return Attend.apply(q, k, v, scale, "stride")

def rows_first(q, k, v, scale):
    return right(*(x.transpose(1, 2) for x in (q, k, v)), scale).transpose(1, 2)

"""

# Batches of 1 and 2 in turn, of one buffer for q, k and v; prints what training comes to.
TRAIN = """
import sys
import torch
import model
torch.manual_seed(0)
attention, rows = getattr(model, sys.argv[1]), sys.argv[1] == "rows_first"
weight = torch.randn(24, 72, requires_grad=True)
for batch in (1, 2) * 4:
    q, k, v = (torch.randn(batch, 20, 24) @ weight).view(batch, 20, 3, 3, 8).permute(2, 0, 3, 1, 4)
    o = attention(*(x.transpose(1, 2) if rows else x for x in (q, k, v)), scale=0.25)
    (o if rows else o.transpose(1, 2)).reshape(batch, 20, 24).square().mean().backward()
print("trained to", weight.grad.sum().item(), torch.rand(1).item())
"""

TESTS = """
import torch
import model

def test_do_contiguous_runs_with_an_expanded_do():
    q, k, v = (torch.randn(2, 3, 6, 8, requires_grad=True) for _ in "qkv")
    model.do_contiguous(q, k, v, 0.5).backward(torch.randn(2, 3, 6, 8))
    assert q.grad is not None

def test_do_contiguous_runs_with_a_transposed_do():
    q, k, v = (torch.randn(2, 3, 6, 8, requires_grad=True) for _ in "qkv")
    model.do_contiguous(q, k, v, 0.5).backward(torch.randn(2, 6, 3, 8).transpose(1, 2))
    assert q.grad is not None
"""

PYTHON = sys.executable


@pytest.fixture
def program(folder):
    (folder / "model.py").write_text(ATTENTION)
    (folder / "train.py").write_text(TRAIN)
    (folder / "test_model.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def watched(function, options="", command=None):
    return run_process(
        f"run --watch model:{function} {options} -- {command or f'{PYTHON} train.py {function}'}"
    )


@pytest.mark.nightly
def test_a_right_function_matches_and_its_program_prints_as_alone(program):
    command = [PYTHON, "train.py", "right"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    ran = watched("right", "--json out.json")
    lines = ran.out.splitlines()
    assert (ran.code, lines[0]) == (0, alone.stdout.strip())
    assert "MATCH     B 2, H 3, L 20, D 8, float32" in ran.out
    assert lines[-1].endswith(": 2 match")
    assert "the command ended well; 2 sets of real inputs of model:right kept" in ran.err
    reports = json.loads((program / "out.json").read_text())["reports"]
    assert [report["verdict"] for report in reports] == ["match", "match"]
    first = torch.load(reports[0]["case"]["inputs"], weights_only=True)
    assert (first["scale"], first["q"].is_contiguous()) == (0.25, True)
    assert first["q.strides"] == first["k.strides"] == first["v.strides"]
    kept = program / ".gradprobe" / "captures" / "model.right"
    (kept / "mine.pt").write_text("")
    assert watched("right", command=f"{PYTHON} -c pass").code == 3
    assert [path.name for path in kept.glob("*.pt")] == ["mine.pt"]


def test_pytest_is_watched_and_only_the_transposed_do_is_wrong(program):
    pytest_alone = f"{PYTHON} -m pytest -q -p no:cacheprovider test_model.py"
    ran = watched("do_contiguous", command=pytest_alone)
    assert ran.code == 1
    assert "2 passed" in ran.out
    lines = [line for line in ran.out.splitlines() if "B 2, H 3, L 6" in line]
    assert [line.split()[0] for line in lines[:2]] == ["MATCH", "MISMATCH"]
    assert ["do strided" in line for line in lines[:2]] == [False, True]
    assert "dP batch=0 head=0" in lines[1]


CALL = "model.right(*(torch.ones(1, 1, 2, 2, requires_grad=True) for _ in 'qkv'), 1.0)"
NOTHING = [
    ("right", "", "pass", ("the module model was never imported in", PYTHON)),
    ("nothing", "", "import model", ("could not be wrapped", "has no function nothing; it has: do_contiguous")),
    ("right", "", f"import torch, model\nwith torch.no_grad():\n    [{CALL} for _ in '123']",
     ("called 3 times; a call without gradients: ", "(3 times)")),
    ("right", "", "import os\nos.kill(os.getpid(), 9)", ("the command was ended by SIGKILL",)),
    ("right", "-I", "pass", ("it ran no Python that reads PYTHONPATH", "with -I")),
]  # fmt: skip


@sampled("function, flag, text, pieces", NOTHING, push=[NOTHING[2]])
def test_nothing_kept_exits_3_and_says_what_was_seen(program, function, flag, text, pieces):
    (program / "go.py").write_text(text)
    ran = watched(function, command=f"{PYTHON} {flag} go.py")
    assert (ran.code, ran.out) == (3, "")
    assert f"gradprobe: no inputs of model:{function} were kept" in ran.err
    assert all(piece in ran.err for piece in pieces), ran.err
