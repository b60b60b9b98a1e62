"""`gradprobe run -- python train.py`: an unmodified program's attention, checked with its own inputs and dO."""

import json
import os
import sys

import pytest
import torch

from tests.cli.command import ROOT, run, run_process
from tests.sampling import sampled

# The backward reads dK of batch 0 for every batch; or takes dO for contiguous, which a transposed one is not.
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
        if ctx.fault == "batch":
            dk[1:] = dk[:1]
        return ctx.scale * ds @ k, dk, p.mT @ do, None, None

def right(q, k, v, scale):
    return Attend.apply(q, k, v, scale, "")

def one_batch(q, k, v, scale):
    return Attend.apply(q, k, v, scale, "batch")

def do_contiguous(q, k, v, scale):
    return Attend.apply(q, k, v, scale, "stride")

def rows_first(q, k, v, scale):
    return right(*(x.transpose(1, 2) for x in (q, k, v)), scale).transpose(1, 2)

def always_causal(q, k, v, scale):
    seen = torch.ones(q.shape[2], k.shape[2]).tril().bool()
    return (scale * q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v

def raising(q, k, v, scale):
    if torch.is_grad_enabled() and q.shape[0] == 2 and not hasattr(torch, "in_training"):
        raise ValueError("not here")
    return right(q, k, v, scale)
"""

# Two layers, batches of 1 and 2 in turn; prints what training comes to.
TRAIN = """
import sys
import torch
import model
from model import *
torch.manual_seed(0)
torch.in_training = True
attention = globals()[sys.argv[1]]

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(24, 72), torch.nn.Linear(24, 24)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 3, 8).permute(2, 0, 3, 1, 4)
        if sys.argv[1] == "rows_first":
            o = attention(*(y.transpose(1, 2) for y in (q, k, v)), 0.25)
        else:
            o = attention(q, k, v, scale=0.25).transpose(1, 2)
        return x + self.out(o.reshape(b, n, 24))

net = torch.nn.Sequential(Layer(), Layer())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(2):
    for batch in (1, 2):
        loss = net(torch.randn(batch, 20, 24)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("trained to", loss.item(), torch.rand(1).item())
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
    """model.py, train.py and test_model.py in the current folder."""
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
def test_a_right_function_matches_in_2_shapes_and_the_program_prints_what_it_prints_alone(program):
    import subprocess

    alone = subprocess.run(
        [PYTHON, "train.py", "right"], capture_output=True, text=True, check=True
    )
    ran = watched("right")
    assert ran.code == 0
    assert ran.out.splitlines()[0] == alone.stdout.strip()
    assert [line.split()[:2] for line in ran.out.splitlines()[1:3]] == [
        ["1", "MATCH"],
        ["2", "MATCH"],
    ]
    assert "B 2, H 3, L 20, D 8, float32; q k v packed, do blhd" in ran.out
    assert ran.out.splitlines()[3] == "2 real sets of inputs: 2 match"
    assert "the command ended well; 2 sets of real inputs of model:right kept" in ran.err


@pytest.mark.nightly
def test_a_fault_of_batch_2_alone_is_found_in_the_second_set_and_its_line_repeats_it(program):
    ran = watched("one_batch")
    assert ran.code == 1
    first, second = ran.out.splitlines()[1:3]
    assert first.split()[1:4] == ["MATCH", "B", "1,"]
    assert second.split()[1:4] == ["MISMATCH", "B", "2,"]
    assert "first wrong: dK batch=1 head=0 row=0 col=0" in second
    assert ran.first_mismatches[0].startswith("FIRST MISMATCH dK batch=1 head=0 row=0 col=0")
    assert len(ran.first_mismatches) == 1
    again = next(line for line in ran.out.splitlines() if "again: gradprobe " in line).partition(
        "gradprobe "
    )[2]
    assert run_process(again).first_mismatches == ran.first_mismatches
    assert run_process("diff dK").code == 1


def test_pytest_is_watched_and_only_the_transposed_do_is_wrong(program):
    ran = watched(
        "do_contiguous", command=f"{PYTHON} -m pytest -q -p no:cacheprovider test_model.py"
    )
    assert ran.code == 1
    assert "2 passed" in ran.out
    lines = [line for line in ran.out.splitlines() if "B 2, H 3, L 6" in line]
    assert [line.split()[1] for line in lines] == ["MATCH", "MISMATCH"]
    assert "q k v do contiguous" in lines[0]
    assert "q k v contiguous, do blhd; first wrong: dP batch=0 head=0" in lines[1]


@pytest.mark.nightly
def test_a_function_of_a_test_file_is_watched_past_pytest_s_own_importing(program):
    (program / "test_own.py").write_text(
        "import torch\n"
        "from model import one_batch\n"
        "def attention(q, k, v, scale):\n"
        "    return one_batch(q, k, v, scale)\n"
        "def test_own():\n"
        "    q, k, v = (torch.randn(2, 3, 6, 8, requires_grad=True) for _ in 'qkv')\n"
        "    attention(q, k, v, 0.5).square().sum().backward()\n"
    )
    ran = run_process(
        f"run --watch test_own:attention -- {PYTHON} -m pytest -q -p no:cacheprovider test_own.py"
    )
    assert ran.code == 1
    assert "B 2, H 3, L 6, D 8" in ran.out


@pytest.mark.nightly
def test_another_target_is_checked_with_the_real_inputs(program):
    ran = watched("right", "--target model.py:one_batch")
    assert ran.code == 1
    assert "(model.py:one_batch, as-saved)" in ran.out


@pytest.mark.nightly
def test_json_holds_a_report_of_each_set_and_stdout_is_it_alone(program):
    ran = watched("one_batch", "--json -")
    document = json.loads(ran.out)
    assert ran.code == 1
    assert (document["schema"], document["verdict"]) == ("gradprobe.runs/1", "mismatch")
    assert (document["watch"], document["command_exit"]) == ("model:one_batch", 0)
    assert document["command"] == [PYTHON, "train.py", "one_batch"]
    assert [report["verdict"] for report in document["captures"]] == ["match", "mismatch"]
    assert [report["schema"] for report in document["captures"]] == ["gradprobe.report/2"] * 2
    assert [report["runs"][0]["layout"] for report in document["captures"]] == [
        "as-saved",
        "as-saved",
    ]
    assert document["captures"][1]["case"]["inputs"].endswith(".inputs.pt")
    assert (document["seen"]["calls"], document["seen"]["kept"]) == (8, 2)
    assert "trained to" in ran.err


def test_of_a_python_without_torch_it_says_which_it_was(program):
    path = program / "bare"
    path.mkdir()
    (path / "python").write_text(
        f'#!/bin/sh\nexec "{PYTHON}" -S "$@"\n'
    )  # no site-packages, and sitecustomize by hand
    (path / "python").chmod(0o755)
    (program / "bare.py").write_text("import sitecustomize\nimport model\n")
    ran = run_process(
        "run --watch model:right -- python bare.py", PATH=f"{path}:{os.environ['PATH']}"
    )
    assert ran.code == 3
    assert f"the program ran in {PYTHON}, which has no torch" in ran.err


def test_a_failure_s_document_repeats_the_command_as_it_was_given(program):
    ran = run_process(f"run --watch model:right --keep 3 --causal --json - -- {PYTHON} -c pass")
    document = json.loads(ran.out)
    assert (ran.code, document["verdict"]) == (3, "error")
    assert document["reproduce"] == (
        f"gradprobe run --causal --watch model:right --keep 3 --order bhld -- {PYTHON} -c pass"
    )


@pytest.mark.nightly
def test_layouts_may_be_chosen_and_a_limit_of_1_set_is_said(program):
    ran = watched("right", "--keep 1 --layout all=distinct --json -")
    (report,) = json.loads(ran.out)["captures"]
    assert [found["layout"] for found in report["runs"]] == ["distinct"]
    assert "1 set more not kept: the limit is 1" in ran.err


@pytest.mark.nightly
def test_sets_of_an_earlier_run_are_gone_and_other_files_are_not(program):
    kept = program / ".gradprobe" / "captures" / "model.right"
    assert watched("right").code == 0
    (kept / "mine.pt").write_text("")
    before = {path.name for path in kept.iterdir()}
    assert watched("right", command=f"{PYTHON} -c pass").code == 3
    assert before - {path.name for path in kept.iterdir()} >= {
        name for name in before if name.endswith(".inputs.pt")
    }
    assert (kept / "mine.pt").exists()


NOTHING = [
    ("right", "-c pass", ("the module model was never imported in", PYTHON)),
    ("right", "-c 'import model'", ("model:right was never called",)),
    (
        "nothing",
        "-c 'import model'",
        ("could not be wrapped", "has no function nothing; it has: always_causal"),
    ),
    ("right", "-I -c pass", ("it ran no Python that reads PYTHONPATH", "with -I")),
    ("right", "forward_only.py", ("called 3 times, each time without gradients",)),
    ("right", "no_backward.py", ("called once, and no gradient came back to its output",)),
    ("right", "-c 'raise SystemExit(7)'", ("the command ended with exit code 7", "never imported")),
]


@sampled("function, words, pieces", NOTHING, push=[NOTHING[0], NOTHING[4]])
def test_nothing_kept_exits_3_and_says_what_was_seen(program, function, words, pieces):
    call = "model.right(*(torch.ones(1, 1, 2, 2, requires_grad=True) for _ in 'qkv'), 1.0)"
    (program / "forward_only.py").write_text(
        f"import torch, model\nwith torch.no_grad():\n    [{call} for _ in '123']\n"
    )
    (program / "no_backward.py").write_text(f"import torch, model\n{call}\n")
    (program / "go.sh").write_text(f"{PYTHON} {words}\n")
    ran = watched(function, command="sh go.sh")
    assert (ran.code, ran.out) == (3, "")
    assert f"gradprobe: no inputs of model:{function} were kept" in ran.err
    assert all(piece in ran.err for piece in pieces), ran.err


@pytest.mark.nightly
def test_a_function_of_the_script_itself_is_no_module_s_and_said(program):
    ran = run_process(f"run --watch train:attention -- {PYTHON} train.py right")
    assert ran.code == 3
    assert "train.py ran as the program itself" in ran.err
    assert "move the function into a module" in ran.err


WRONG = [
    (
        f"run --watch model.right -- {PYTHON} train.py",
        "--watch takes MODULE:FUNCTION, got 'model.right'",
    ),
    (
        f"run --watch model:A.b -- {PYTHON} train.py",
        "--watch takes MODULE:FUNCTION, got 'model:A.b'",
    ),
    (f"run -- {PYTHON} train.py", "run: nothing to watch"),
    ("run --watch model:right", "run: no command"),
    ("run --watch model:right -- no-such-command", "there is no command 'no-such-command'"),
    ("run --watch model:right -- no-such-command", f"gradprobe itself runs in {PYTHON}"),
    (f"run --watch model:right --keep 0 -- {PYTHON} train.py", "keep must be at least 1, got 0"),
    (
        f"run --watch model:right --order bldh -- {PYTHON} train.py",
        "order must be one of bhld, blhd, got 'bldh'",
    ),
    (
        f"run --watch model:right --window 3 -- {PYTHON} train.py",
        "--window takes two whole numbers",
    ),
]


@pytest.mark.parametrize(("words", "piece"), WRONG)
def test_wrong_words_exit_2_before_anything_runs(program, words, piece):
    ran = run(words)
    assert (ran.code, ran.out) == (2, "")
    assert piece in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.nightly
def test_a_program_that_fails_after_3_steps_is_checked_all_the_same(program):
    train = (program / "train.py").read_text()
    (program / "fails.py").write_text(train.replace("print(", "raise RuntimeError('lost')\nprint("))
    ran = watched("right", command=f"{PYTHON} fails.py right")
    assert ran.code == 0
    assert "the command ended with exit code 1; 2 sets" in ran.err


@pytest.mark.nightly
def test_rows_before_heads_are_told_from_a_fault_and_exit_3(program):
    ran = watched("rows_first")
    assert ran.code == 3
    assert "NOT RUN" in ran.out
    assert "right where they are [B, L, H, D]; the order here is [B, H, L, D]" in ran.out
    assert "keep them with --order blhd, and check it with --shapes blhd" in ran.out
    ran = watched("rows_first", "--order blhd")
    assert ran.code == 0
    assert "B 2, H 3, L 20, D 8, float32; q k v packed, do blhd" in ran.out


def test_a_command_that_a_signal_ends_is_said_by_name(program):
    (program / "killed.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    ran = watched("right", command=f"{PYTHON} killed.py")
    assert ran.code == 3
    assert "the command was ended by SIGKILL" in ran.err


@pytest.mark.nightly
def test_a_mask_that_nobody_told_is_found_out(program):
    ran = watched("always_causal")
    assert ran.code == 0
    assert "float32, causal" in ran.out


@pytest.mark.nightly
def test_a_function_that_raises_in_the_check_alone_exits_3_and_the_other_set_is_checked(program):
    ran = watched("raising")
    assert ran.code == 3
    assert [line.split()[1] for line in ran.out.splitlines()[1:3]] == ["MATCH", "NOT"]
    assert "raised ValueError (as-saved): not here" in ran.out


def test_torch_s_own_attention_is_watched_however_it_was_imported(program):
    (program / "own.py").write_text(
        "import torch\nfrom torch.nn.functional import scaled_dot_product_attention as attend\n"
        "q, k, v = (torch.randn(2, 3, 9, 8, requires_grad=True) for _ in 'qkv')\n"
        "attend(q, k, v, is_causal=True).square().sum().backward()\n"
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, torch.randn(9, 9)).sum().backward()\n"
    )
    ran = run_process(
        f"run --watch torch.nn.functional:scaled_dot_product_attention -- {PYTHON} own.py"
    )
    assert ran.code == 0
    assert "causal; q k v do contiguous" in ran.out
    assert "bias; q k v contiguous, do expanded" in ran.out


@pytest.mark.nightly
def test_a_sitecustomize_of_the_user_runs_as_before_and_the_path_is_its_own(program):
    own = program / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 5\n")
    (program / "site_train.py").write_text(
        "import sys\nassert mine == 5\nassert not any('gradprobe/recording/child' in entry for entry in sys.path)\n"
        + (program / "train.py").read_text()
    )
    ran = run_process(
        f"run --watch model:right -- {PYTHON} site_train.py right",
        PYTHONPATH=os.pathsep.join([str(own), str(ROOT)]),
    )
    assert ran.code == 0, ran.err


@pytest.mark.nightly
def test_processes_started_by_fork_and_by_spawn_are_seen(program):
    (program / "many.py").write_text(
        "import multiprocessing, torch, model\n"
        "def work(batch):\n"
        "    torch.set_num_threads(1)\n"
        "    q, k, v = (torch.randn(batch, 2, 6, 4, requires_grad=True) for _ in 'qkv')\n"
        "    model.right(q, k, v, 0.5).sum().backward()\n"
        "if __name__ == '__main__':\n"
        "    for batch, way in enumerate(('fork', 'spawn'), 2):\n"
        "        process = multiprocessing.get_context(way).Process(target=work, args=(batch,))\n"
        "        process.start()\n"
        "        process.join()\n"
    )
    ran = watched("right", "--json -", command=f"{PYTHON} many.py")
    document = json.loads(ran.out)
    assert sorted(report["case"]["batch"] for report in document["captures"]) == [2, 3]
    assert document["seen"]["calls"] == 2


def test_heads_in_rows_chosen_layouts_a_limit_a_fork_and_the_user_s_sitecustomize_go_together(
    program,
):
    own = program / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 5\n")
    (program / "forks.py").write_text(
        "import os, torch, model\nassert mine == 5\ntorch.set_num_threads(1)\n"
        "def work(batch):\n"
        "    q, k, v = (torch.randn(batch, 6, 2, 4, requires_grad=True) for _ in 'qkv')\n"
        "    model.rows_first(q, k, v, 0.5).square().sum().backward()\n"
        "if os.fork() == 0:\n    work(2)\n"
        "else:\n    os.wait()\n    work(3)\n    work(4)\n"
    )
    ran = run_process(
        f"run --watch model:rows_first --order blhd --keep 1 --layout all=distinct --json - -- {PYTHON} forks.py",
        PYTHONPATH=os.pathsep.join([str(own), str(ROOT)]),
    )
    document = json.loads(ran.out)
    (report,) = document["captures"]
    assert (ran.code, document["seen"]["calls"]) == (0, 3)
    assert [found["layout"] for found in report["runs"]] == ["distinct"]
    assert (report["case"]["heads"], report["case"]["seqlen_q"]) == (2, 6)
    assert "1 set more not kept: the limit is " in ran.err


@pytest.mark.nightly
def test_the_set_is_what_the_program_computed_with(program):
    assert watched("right").code == 0
    files = sorted((program / ".gradprobe" / "captures" / "model.right").glob("*.inputs.pt"))
    assert len(files) == 2
    found = torch.load(files[0], weights_only=True)
    assert found["scale"] == 0.25
    assert found["q"].is_contiguous()
    assert found["q.buffer"] == found["k.buffer"] == found["v.buffer"]
