"""`gradprobe init --list`: what is there, what is not and why, without importing what it lists."""

import json
import os
import subprocess
import sys

import pytest

from gradprobe.commands.target_list import catalogue
from gradprobe.model.intermediates import names
from gradprobe.targets import builtin
from gradprobe.targets.builtin import BUILTINS
from gradprobe.targets.find import find_target
from tests.cli.command import ROOT, SMALL, run, run_process
from tests.cli.test_cli_errors import assert_message
from tests.sampling import sampled


@pytest.fixture(autouse=True)
def _without_cuda(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(builtin.importlib.util, "find_spec", _without("flash_attn", "xformers"))


def _without(*packages):
    original = builtin.importlib.util.find_spec
    return lambda name, package=None: None if name in packages else original(name, package)


def listed():
    return {
        target["name"]: target for target in json.loads(run("init --list --json -").out)["targets"]
    }


def test_every_target_is_listed_with_its_options_what_it_exposes_and_its_file():
    ran = run("init --list", COLUMNS="80")
    assert (ran.code, ran.err) == (0, "")
    paragraph = ran.out.partition("\nsdpa-math ")[2].partition("\n\n")[0].splitlines()
    assert paragraph == [
        "     PyTorch's SDPA of plain operations",
        "  family     softmax, a forward through autograd",
        "  takes      --causal --align --window --scale --bias --alibi --mask --seqlens",
        "             --cu-seqlens --cu-seqlens-k",
        "  exposes    O dQ dK dV dBias",
        paragraph[-1],
    ]
    assert paragraph[-1].startswith("  file       gradprobe/targets/adapters/sdpa.py:")
    for name in BUILTINS:
        assert f"\n{name} " in f"\n{ran.out}"
    assert "FILE.py:FUNCTION" in ran.out
    assert "MODULE:FUNCTION" in ran.out
    assert "gradprobe init" in ran.out


@pytest.mark.parametrize("columns", [80, 200])
def test_no_line_is_wider_than_the_screen(columns):
    lines = run("init --list", COLUMNS=str(columns)).out.splitlines()
    assert max(map(len, lines)) <= columns


def test_what_cannot_run_here_says_what_it_needs():
    missing = {name: target["missing"] for name, target in listed().items()}
    assert missing == {
        "lazy": None, "flash": None, "lazy-cuda": None, "flash-cuda": None,
        "sdpa": None, "sdpa-math": None, "sdpa-flash": None, "flex": None,
        "sdpa-efficient": "needs a CUDA device", "sdpa-cudnn": "needs a CUDA device",
        "flash-attn": "needs the package flash-attn (pip install flash-attn)",
        "xformers": "needs the package xformers (pip install xformers)",
    }  # fmt: skip
    assert run("init --list").out.count("not here   needs a CUDA device\n") == 2


def test_with_a_cuda_device_and_the_packages_everything_can_run(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(builtin.importlib.util, "find_spec", lambda *_: object())
    assert [builtin_.missing() for builtin_ in BUILTINS.values()] == [""] * len(BUILTINS)


@pytest.mark.parametrize(("name", "words"), [
    ("sdpa-cudnn", "it needs a CUDA device"), ("sdpa-efficient", "it needs a CUDA device"),
    ("flash-attn", "it needs the package flash-attn (pip install flash-attn)"),
])  # fmt: skip
@pytest.mark.parametrize("command", ["check", "diff dQ"])
def test_a_target_that_cannot_run_here_exits_3_and_says_what_it_needs(command, name, words):
    ran = run(f"{command} {name} --causal")
    assert ran.code == 3
    assert_message(
        ran, f"target '{name}' cannot run here: {words}", "gradprobe init --list says what can"
    )


def test_json_has_a_schema_and_the_fields_of_each_target():
    ran = run("init --list --json list.json")
    assert (ran.code, ran.out.startswith("lazy ")) == (0, True)
    with open("list.json", encoding="utf-8") as file:
        document = json.load(file)
    assert document["schema"] == "gradprobe.targets.find/1"
    lazy = document["targets"][0]
    assert lazy.keys() == {
        "name", "summary", "family", "is_backward", "takes", "outputs", "exposes", "file", "line", "missing"
    }  # fmt: skip
    assert (lazy["family"], lazy["is_backward"]) == ("lazy", True)
    assert len(lazy["exposes"]) == 11
    assert set(lazy["exposes"]) == set(names()) - {"dSink", "dAlibi"}


@pytest.mark.parametrize("words", ["--ci github", "--family lazy", "--force"])
def test_what_says_how_to_write_is_refused_where_nothing_is_written(words):
    ran = run(f"init --list {words}")
    assert (ran.code, ran.out) == (2, "")
    assert_message(ran, "init: --list writes nothing", "drop --family, --ci, --target and --force")


def test_a_json_file_that_cannot_be_written_exits_2():
    ran = run("init --list --json no/such/folder.json")
    assert ran.code == 2
    assert_message(ran, "no/such/folder.json: cannot be written, No such file or directory")


@pytest.mark.parametrize(
    "name", ["lazy", "flash", "lazy-cuda", "flash-cuda", "sdpa", "sdpa-math", "sdpa-flash", "flex"]
)
def test_what_is_listed_is_what_an_import_finds(name):
    entry, target = next(entry for entry in catalogue() if entry.name == name), find_target(name)
    assert (entry.family, entry.is_backward) == (target.family, target.is_backward)
    assert os.path.samefile(entry.file, target.source.file)
    assert entry.line == target.source.line
    assert {option for option in entry.takes if option != "cu_seqlens"} == {
        name
        for name in target.takes.keys() - set(target.outputs)
        if name not in ("q", "k", "v", "do", "cu_seqlens_q")
    }
    assert entry.outputs == (("dq", "dk", "dv") if entry.is_backward else ())
    assert entry.outputs == target.outputs


EXPOSING = [
    ("lazy", ""), ("flash", "--bias --sinks"), ("lazy-cuda", ""), ("flash-cuda", ""), ("sdpa", "--bias"),
    ("sdpa-math", "--bias"), ("sdpa-flash", ""), ("flex", "--bias"),
]  # fmt: skip


# On every push one of each kind: Triton, CUDA C++, a function of PyTorch's.
@sampled("name, options", EXPOSING, push=[EXPOSING[at] for at in (0, 3, 4)])
def test_what_is_said_to_be_exposed_is_compared(name, options):
    ran = run(f"check {name} {options} {SMALL} --layout q=contiguous --json -")
    report = json.loads(ran.out)
    exposed = {
        row["name"] for row in report["runs"][0]["intermediates"] if row["source"] == "exported"
    }
    assert ran.code == 0
    assert exposed == set(BUILTINS[name].exposes)


def test_every_row_of_the_table_names_a_function_that_is_there():
    assert [entry.name for entry in catalogue()] == list(BUILTINS)
    for entry in catalogue():
        assert set(entry.exposes) <= set(names())
        assert entry.summary


def test_listing_imports_no_torch_where_there_is_no_driver():
    script = """
import sys
from gradprobe.targets import builtin
builtin.has_driver = lambda: False
sys.argv = ["gradprobe", "init", "--list"]
from gradprobe.cli import main
try:
    main()
finally:
    print("LOADED", *sorted({"torch", "triton", "numpy"} & set(sys.modules)))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[-1].split() == ["LOADED"]


def test_a_pipe_gets_no_escape_codes():
    assert "\x1b" not in run_process("init --list").out


FILE = """
import torch
class _attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, sm_scale): ...
attention = _attention.apply
def windowed(query, key, value, window_size):
    return query * key.sum() * value.sum()
def everything(q, k, v, attn_bias, softcap, cu_seqlens, max_seqlen, alibi_slopes, sinks, keep, dropout_p):
    return q * k.sum() * v.sum()
def masked(q, k, v, attention_mask, seqlens):
    return q * k.sum() * v.sum()
def lazy(q, k, v, do, bias, tau, window_size, dq):
    return {}
def is_cuda():
    return False
def conf(q, k, v, blocks):
    return q
def _hidden(q, k, v):
    return q
"""


def found(folder, text=FILE):
    (folder / "kernels.py").write_text(text)
    ran = run("init --list kernels.py --json out.json --no-isolate", COLUMNS="80")
    assert (ran.code, ran.err) == (0, "")
    targets = json.loads((folder / "out.json").read_text())["targets"]
    return ran.out, {target["name"].removeprefix("kernels.py:"): target for target in targets}


def test_the_functions_of_a_file_are_listed_with_the_words_to_type_and_why_others_are_none(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    out, targets = found(tmp_path)
    assert list(targets) == [
        "attention",
        "windowed",
        "everything",
        "masked",
        "lazy",
        "is_cuda",
        "conf",
    ]
    commands = {
        name: target["command"].removeprefix("gradprobe check kernels.py:")
        for name, target in targets.items()
    }
    assert commands == {
        "attention": "attention",
        "windowed": "windowed --window 16,0",
        "everything": "everything --bias --softcap 5.0 --alibi --sinks --dropout 0.3 --cu-seqlens 0,30,72",
        "masked": "masked --seqlens 72,40 --mask random",
        "lazy": "lazy",
        "is_cuda": "",
        "conf": "",
    }
    assert targets["attention"]["takes"] == ["causal", "scale"]
    assert targets["lazy"]["takes"] == ["bias", "bias_window", "tau"]
    assert (targets["lazy"]["family"], targets["lazy"]["outputs"]) == ("lazy", ["dq"])
    assert out.startswith("kernels.py: 5 of 7 functions can be checked\n")
    assert (
        "\n  conf       line 17: it needs a parameter 'blocks' that gradprobe has no value\n" in out
    )
    assert out.endswith("\n  no q, k, v  is_cuda\n")
    told = [
        line for line in out.splitlines() if not line.startswith("gradprobe check ")
    ]  # which are to be pasted
    assert max(map(len, told)) <= 80


def test_a_file_without_a_target_says_what_makes_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, targets = found(tmp_path, "def is_cuda():\n    return False\n")
    assert out.startswith("kernels.py: 0 of 1 function can be checked\n")
    assert "gradprobe init writes an adapter" in out
    assert targets["is_cuda"]["is_other"]


def test_a_file_of_kernels_alone_says_that_functions_launch_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kernel = "import triton\n@triton.jit\ndef backward(q_ptr):\n    pass\n"
    out, targets = found(tmp_path, kernel)
    assert targets == {}
    assert "kernels.py has kernels and nothing that launches them (backward)" in " ".join(
        out.split()
    )


def test_a_file_that_fails_to_import_is_3_and_another_word_is_2(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    assert run("init --list broken.py --no-isolate").code == 3
    assert run("init --list lazy").code == 2


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["windowed", "everything", "masked"])
def test_the_words_that_are_listed_call_the_function(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, targets = found(tmp_path)
    ran = run(
        f"{targets[name]['command'].removeprefix('gradprobe ')} --fix-budget 0 --runs contiguous"
    )
    assert ran.code == 1, ran.err
    assert "FIRST MISMATCH" in ran.out
