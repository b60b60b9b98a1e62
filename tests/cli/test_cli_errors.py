import json

import pytest

from tests.cli.command import SMALL, run
from tests.commands.mutate.written import TINY

pytestmark = pytest.mark.usefixtures("without_causes")


def assert_message(ran, *pieces):
    assert ran.err.startswith(("gradprobe: ", "Usage: "))
    assert "Traceback" not in ran.err
    assert "gradprobe itself failed" not in ran.err
    assert ran.out == ""
    for piece in pieces:
        assert piece in ran.err


# What is refused before anything runs, the exit code, and pieces of the message.
REFUSED = [
    ("check --no-causal", 2, ("--no-causal: lazy attention is always causal", "drop --no-causal")),
    ("check --layout spread", 2,
     ("--layout takes TENSOR=NAME or NAME, got 'spread'", "for example --layout do=expanded")),
    ("check soft.py:backward --tau 1", 2, ("--tau: the softmax family has no such option", "a target that takes tau")),
    ("check far/off.py:f", 2, ("target 'far/off.py:f': there is no file far/off.py", "the current folder")),
    ("check no.such:backward", 2, ("target 'no.such:backward': there is no module no.such", "installed?")),
    ("check torch:bmm", 2, ("target 'torch:bmm' has no readable signature", "wrap it in a function")),
    ("check soft.py:bakward", 2, ("soft.py has no function bakward", "did you mean 'backward'? it has: ")),
    ("diff dQ soft.py:backward --at 1", 2, ("--at takes BATCH,HEAD, two whole numbers, got '1'",)),
    (f"diff dQ soft.py:backward --at 0,2 {SMALL}", 2, ("--at 0,2: dQ has batches 0 to 0 and heads 0 to 1",)),
    (f"diff LSE soft.py:backward {SMALL}", 2, ("the target does not expose LSE", "it exposes P, dP, delta, dS, dQ")),
    (f"check soft.py:attention --softcap 5 {SMALL}", 2,
     ("cannot take --softcap: it has no such parameter", "it takes q, k, v, scale, is_causal")),
    ("audit soft.py:backward --layout do=blhd", 2, ("--layout: an audit draws small cases of its own",)),
    ("doctor --heads 2", 2, ("doctor takes a case with a TARGET alone",)),
    ("doctor soft.py:backward --layout q=packed", 2, ("--layout q=packed",)),
    ("lint broken.py", 3, ("nothing_of_this_name",)), ("lint empty.py", 3, ("read",)),
    ("check soft.py:backward --seed -1 --baseline a.json", 2, ("--seed must lie in 0 to 2^63 - 1",)),
    ("check --baseline a.json --contract", 2, ("--baseline and --contract ask for two things",)),
    ("check soft.py:backward --timeout 0", 2, ("--timeout must be seconds above 0",)),
    ("check soft.py:backward --timeout 5 --no-isolate", 2, ("--timeout stops a process, and --no-isolate is in",)),
    ("check --baseline a.json --junit x.xml", 2, ("this is written as --json alone",)),
    ("check sdpa-math --contract --layout q=blhd", 2, ("--layout: contract runs contiguous values",)),
    ("check sdpa-math --contract --dtype float16 --seqlen 16 --head-dim 24", 2,
     ("--pattern dyadic: the scale must be a power of two, 1/64 or more, got 0.204124",)),
    ("strides lazy --layout do=blhd", 2, ("--layout: strides tries every layout",)),
    ("strides soft.py:backward --json no/such.json", 2, ("--json no/such.json: cannot be written",)),
    ("sweep soft.py:backward --heads 2", 2, ("sweep: no option is given several values",)),
    ("sweep soft.py:backward --workers 0", 2, ("--workers must be at least 1, got 0",)),
    ("sweep soft.py:backward --resume a.jsonl", 2, ("--resume goes on with its own cases",)),
    ("sweep soft.py:backward --seed 1 --seed 2 --journal no/a.jsonl", 2, ("--journal no/a.jsonl: cannot be opened",)),
    ("shrink soft.py:doubled_dq --inputs a.pt", 2, ("--inputs: only a case whose values are drawn",)),
    (f"shrink soft.py:raising {SMALL}", 3, ("the target says no",)),
    ("mutate tiny.py", 2, ("names no function for gradprobe to check",)),
    ("mutate tiny.py:tiny --check true --heads 4", 2, ("--heads: a case of gradprobe check",)),
    ("mutate tiny.py:tiny --class S1", 2, ("--class is no option any more: gradprobe mutate plants",)),
    ("mutate soft.py:backward", 2, ("holds no Triton kernel that backward reaches",)),
    ("mutate tiny.py --file kernels.cu --check true", 2, ("not yet in CUDA C++",)),
    ("run --watch model.right -- true", 2, ("--watch takes MODULE:FUNCTION, got 'model.right'",)),
    ("run -- true", 2, ("run: nothing to watch",)), ("run --watch model:right", 2, ("run: no command",)),
    ("run --watch model:right -- no-such", 2,
     ("there is no command 'no-such'", "for example gradprobe run --watch model:right --")),
    ("run --watch model:right --keep 0 -- true", 2, ("keep must be at least 1, got 0",)),
    ("run --watch model:right --order bldh -- true", 2, ("order must be one of bhld, blhd, got 'bldh'",)),
    (f"check soft.py:backward --layout dq=distinct {SMALL}", 2,
     ("dq=distinct: target 'soft.py:backward' is not given dq", "it takes q, k, v, do")),
    (f"check soft.py:backward --runs distinct --layout do=offset {SMALL}", 2, ("--layout and --runs both say where",)),
    (f"check soft.py:contiguous_only --layout all=distinct {SMALL}", 3,
     ("nothing was compared", "refused every layout (distinct: AssertionError: q and do must be")),
    ("check --baseline errors.json", 2, ("--baseline is of one kernel, and no TARGET is given", "name it")),
    ("check lazy --baseline errors.json --inputs q.npz", 2, ("a file is one draw", "drop it")),
    ("init --list --ci github", 2, ("init: --ci says nothing of --list", "drop --ci")),
    ("init --list --json no/such/list.json", 2, ("no/such/list.json: cannot be written, No such file or directory",)),
    ("init --list soft.py", 2, ("lists what is built in", "gradprobe check soft.py checks its function")),
    ("init --target soft.py:backward", 2, ("--target says nothing of an adapter",)),
    ("init --ci gitlab", 2, ("--ci must be github, got 'gitlab'",)),
    ("init --ci github w.txt", 2, ("init --ci writes a YAML file, got w.txt", ".github/workflows/gradprobe.yml")),
    ("init --ci github soft.py/w.yml", 2, ("soft.py/w.yml: cannot be written, File exists",)),
    ("init --ci github --target none.py:f", 2, ("sees no file none.py", "the repository's root")),
    ("init --ci github --target ${{secrets.X}}:f", 2, ("cannot be written into a workflow",)),
    ("init adapter.txt", 2, ("init writes a Python file, got adapter.txt",)),
    ("sweep lazy --draw 3", 2, ("--draw is no option any more: gradprobe check TARGET --battery",)),
    ("baseline save", 2, ("baseline is no command any more: gradprobe check TARGET --baseline FILE",)),
    ("compare a.json b.json", 2, ("compare is no command any more: gradprobe show OLD.json NEW.json",)),
    ("contract", 2, ("contract is no command any more: gradprobe check TARGET --contract",)),
    ("targets", 2, ("targets is no command any more: gradprobe init --list",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "pieces"), REFUSED, ids=[words for words, *_ in REFUSED]
)
def test_what_is_refused_is_refused_before_anything_is_written(words, code, pieces, folder):
    (folder / "tiny.py").write_text(TINY)
    (folder / "broken.py").write_text("import nothing_of_this_name\n")
    (folder / "empty.py").write_text("x = 1\n")
    before = {file.name for file in folder.iterdir()}
    ran = run(words, COLUMNS="200")
    assert ran.code == code
    assert_message(ran, *pieces)
    after = {file.name for file in folder.iterdir()}
    assert after - before <= {".gradprobe", "__pycache__", "x.xml"}


def test_a_word_that_the_parser_refuses_and_cuda_without_a_device_exit_2_on_stderr(monkeypatch):
    for words in ("check --heads four", "check --head 4", "diff", "chek"):
        ran = run(words)
        assert (ran.code, ran.out, "Usage: gradprobe" in ran.err) == (2, "", True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ran, needs = run("diff dQ sdpa-cudnn --causal"), "cannot run here: it needs a CUDA device"
    assert ran.code == 3
    assert_message(ran, needs, "gradprobe init --list says what can")
    monkeypatch.delenv("TRITON_INTERPRET")
    ran = run("check --device cuda")
    assert ran.code == 2
    assert_message(ran, "--device cuda: torch sees no CUDA device", "use --device cpu")


FORWARD = "def f(q, k, v, scale):\n    return "
RAISES = "def f(q, k, v, do):\n    raise OSError("
AUTOGRAD = """
import torch

class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        return (scale * q @ k.mT).softmax(-1) @ v

    @staticmethod
    def backward(ctx, do):
        return {result}

def f(q, k, v, scale):
    return Attention.apply(q, k, v, scale)
"""
UNUSABLE_FILES = [
    # Signatures that nothing can be passed to.
    ("def f(*args): pass", 2, ("takes *args; arguments are passed by name", "wrap it: def attention(q, k, v)")),
    ("def f(q, k, v, do, temperature): pass", 2, ("needs a parameter 'temperature' that gradprobe has no value for",)),
    ("def f(q, k, v, do, bias): pass", 2, ("needs 'bias', which this case does not have", "add --bias")),
    # Files that fail to import.
    ("exit()", 3, ("fails to import: SystemExit: it calls exit()", "--traceback shows where")),
    ("\nassert not __name__", 3, ("AssertionError: odd.py:2: assert not __name__",)),
    # Forwards that autograd cannot differentiate.
    (FORWARD + "(q @ k.mT @ v).detach()", 3, ("is not differentiable: its output does not require grad",)),
    (FORWARD + "{'O': v, 'out': v}", 3, ("a forward must return its output tensor, got a dict of O, out",)),
    (FORWARD + "(q @ k.mT @ v).transpose(1, 2)", 3, ("that looks like [B, L, H, D]: return O transposed",)),
    (AUTOGRAD.format(result="do, do"), 3, ("raised RuntimeError (contiguous)", "incorrect number of gradients")),
    # Of a long message the first paragraph is told; what takes one number as its window is passed its left side.
    (RAISES + "'no kernel' + 2 * chr(10) + 40 * ('backend' + chr(10)))", 3,
     ("raised OSError (contiguous): no kernel\n  ",)),
    ("def f(q, k, v, do, window_size=-1):\n    raise ValueError(window_size)", 3, ("ValueError (contiguous): 4",)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "pieces"), UNUSABLE_FILES)
def test_a_file_whose_function_cannot_be_run_is_told_with_why(text, code, pieces, folder):
    (folder / "odd.py").write_text(text + "\n")
    ran = run(f"check odd.py:f {SMALL} {'--window 4,0' * ('window_size' in text)}")
    assert ran.code == code
    assert_message(ran, "target 'odd.py:f'", *pieces)


def test_a_gradient_that_never_comes_is_0_and_wrong(folder):
    (folder / "forward.py").write_text(AUTOGRAD.format(result="do, None, do, None"))
    ran = run(f"check forward.py:f {SMALL}")
    assert ran.code == 1
    assert "dK" in ran.out.partition("wrong by itself too: ")[2].partition(";")[0]


UNUSABLE_RESULTS = [
    ("wrong_shape", ("returned dK of the wrong shape", "expected [b, g, n, d] = [1, 2, 20, 8], got [1, 2, 19, 8]")),
    ("unknown_name", ("returned an unknown intermediate 'dW'", "known: LSE, P, O, dP")),
    ("dq_twice", ("returned dQ twice, once as 'dq'", "keep one")),
    ("tau_of_softmax", ("returned dTau, which does not exist in this case", "leave it out")),
    ("nothing", ("must return a dict of named intermediates, got NoneType",)),
    ("raising", ("raised ValueError (contiguous): the target says no", "--traceback shows where")),
    ("without_values", ("returned dQ as", "on meta", "with values")),
    ("eight_bits", ("returned dQ as", "torch.float8_e4m3fn", "of 16 bits or more")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pieces"), UNUSABLE_RESULTS, ids=[name for name, _ in UNUSABLE_RESULTS]
)
def test_a_target_that_cannot_be_compared_exits_3_and_never_1(name, pieces):
    ran = run(f"check soft.py:{name} {SMALL}")
    assert ran.code == 3
    assert_message(ran, f"target 'soft.py:{name}'", *pieces)


def test_a_refusal_of_two_layouts_is_skipped_and_the_rest_matches(folder):
    ran = run(f"check soft.py:contiguous_only {SMALL} --json report.json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(
        "MATCH  soft.py:contiguous_only: 7 intermediates within budget in 1 layout "
    )
    words = "AssertionError: q and do must be contiguous"
    assert f"  distinct       skipped: {words}\n" in ran.out
    report = json.loads((folder / "report.json").read_text())
    assert [(run["layout"], run["verdict"], run["skipped"]) for run in report["runs"]] == [
        ("contiguous", "match", None), ("distinct", "skipped", words), ("distinct-unit", "skipped", words),
        ("do=expanded", "skipped", words),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "kind", "message"),
    [
        ("check --heads 0", 2, "UsageFailure", "--heads must be at least 1, got 0"),
        (f"diff dQ soft.py:raising {SMALL} --traceback", 3, "Refusal", "the target says no"),
        (f"check soft.py:backward --reference soft.py:dv_without_a_head {SMALL}", 3, "ReferenceFailure",
         "the verdict is about the reference: soft.py:dv_without_a_head: no known formula gives its dV"),
    ],
)  # fmt: skip
def test_a_failure_with_json_on_stdout_is_a_report_of_an_error(words, code, kind, message):
    ran = run(f"{words} --json -")
    report = json.loads(ran.out)
    assert ran.code == code
    assert (report["schema"], report["verdict"]) == ("gradprobe.report/2", "error")
    assert report["error"]["kind"] == kind
    assert message in report["error"]["message"]
    assert (report["runs"], report["first_mismatch"], report["diagnoses"]) == ([], None, [])
    assert report["reproduce"].startswith(f"gradprobe {words.split()[0]} ")
    assert message in ran.err
    assert ("Traceback (most recent call last)" in ran.err) == ("--traceback" in words)


@pytest.mark.parametrize("words", ["planted", ""])
def test_an_error_of_the_tool_itself_exits_3_and_never_1(words, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError(words)

    monkeypatch.setattr("gradprobe.probing.measure.compare", broken)
    ran = run(f"check soft.py:backward {SMALL}")
    assert (ran.code, ran.out) == (3, "")
    said = f"itself failed: ZeroDivisionError: {words or 'test_cli_errors.py:'}"
    assert said in ran.err
    assert ran.err.endswith("\n  run again with --traceback and report it\n")
