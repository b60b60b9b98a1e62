"""`gradprobe init --list`: what is there, what is not and why, without importing what it lists."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradprobe.commands.target_list import catalogue
from gradprobe.model.intermediates import names
from gradprobe.targets import builtin
from gradprobe.targets.builtin import BUILTINS
from gradprobe.targets.find import find_target
from tests.cli.command import ROOT, SMALL, run
from tests.cli.test_cli_errors import assert_message


@pytest.fixture(autouse=True)
def _without_cuda(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(builtin.importlib.util, "find_spec", _without("flash_attn", "xformers"))


def _without(*packages):
    original = builtin.importlib.util.find_spec
    return lambda name, package=None: None if name in packages else original(name, package)


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
    for words in (*(f"\n{name} " for name in BUILTINS), "FILE.py:FUNCTION", "MODULE:FUNCTION"):
        assert words in f"\n{ran.out}"
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "\x1b" not in ran.out


def test_what_cannot_run_here_says_what_it_needs_and_each_has_its_fields():
    ran = run("init --list --json list.json")
    document = json.loads(Path("list.json").read_text())
    targets = {target["name"]: target for target in document["targets"]}
    assert (ran.code, document["schema"]) == (0, "gradprobe.targets.find/1")
    assert {name: target["missing"] for name, target in targets.items()} == {
        **dict.fromkeys(("lazy", "flash", "lazy-cuda", "flash-cuda", "sdpa", "sdpa-math", "sdpa-flash", "flex")),
        "sdpa-efficient": "needs a CUDA device", "sdpa-cudnn": "needs a CUDA device",
        "flash-attn": "needs the package flash-attn (pip install flash-attn)",
        "xformers": "needs the package xformers (pip install xformers)",
    }  # fmt: skip
    assert ran.out.count("not here   needs a CUDA device\n") == 2
    lazy = targets["lazy"]
    assert lazy.keys() == {
        "name", "summary", "family", "is_backward", "takes", "outputs", "exposes", "file", "line", "missing"
    }  # fmt: skip
    assert (lazy["family"], lazy["is_backward"], len(lazy["exposes"])) == ("lazy", True, 11)
    assert set(lazy["exposes"]) == set(names()) - {"dSink", "dAlibi"}


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        ("check sdpa-cudnn", "it needs a CUDA device"),
        ("diff dQ flash-attn", "it needs the package flash-attn (pip install flash-attn)"),
    ],
)
def test_a_target_that_cannot_run_here_exits_3_and_says_what_it_needs(words, needs):
    ran = run(f"{words} --causal")
    assert ran.code == 3
    assert_message(ran, f"cannot run here: {needs}", "gradprobe init --list says what can")


@pytest.mark.parametrize("name", ["lazy", "flash", "flash-cuda", "sdpa", "flex"])
def test_what_is_listed_is_what_an_import_finds(name):
    entry, target = next(entry for entry in catalogue() if entry.name == name), find_target(name)
    assert (entry.family, entry.is_backward) == (target.family, target.is_backward)
    assert os.path.samefile(entry.file, target.source.file)
    assert entry.line == target.source.line
    own = {"q", "k", "v", "do", "cu_seqlens_q", *target.outputs}
    assert {*entry.takes} - {"cu_seqlens"} == target.takes.keys() - own
    assert entry.outputs == (("dq", "dk", "dv") if entry.is_backward else ())
    assert entry.outputs == target.outputs


@pytest.mark.parametrize(
    ("name", "options"), [("lazy", ""), ("flash", "--bias --sinks"), ("sdpa", "--bias")]
)  # fmt: skip
def test_what_is_said_to_be_exposed_is_compared(name, options):
    ran = run(f"check {name} {options} {SMALL} --layout q=contiguous --json -")
    found = json.loads(ran.out)["runs"][0]["intermediates"]
    assert ran.code == 0
    assert {row["name"] for row in found if row["source"] == "exported"} == {
        *BUILTINS[name].exposes
    }


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
    folder,
):
    out, targets = found(folder)
    begins = "gradprobe check kernels.py:"
    assert {name: one["command"].removeprefix(begins) for name, one in targets.items()} == {
        "attention": "attention",
        "windowed": "windowed --window 16,0",
        "everything": "everything --bias --softcap 5.0 --alibi --sinks --dropout 0.3 --cu-seqlens 0,30,72",
        "masked": "masked --seqlens 72,40 --mask random",
        "lazy": "lazy", "is_cuda": "", "conf": "",
    }  # fmt: skip
    assert targets["attention"]["takes"] == ["causal", "scale"]
    assert targets["lazy"]["takes"] == ["bias", "bias_window", "tau"]
    assert (targets["lazy"]["family"], targets["lazy"]["outputs"]) == ("lazy", ["dq"])
    assert out.startswith("kernels.py: 5 of 7 functions can be checked\n")
    why = "\n  conf       line 17: it needs a parameter 'blocks' that gradprobe has no value\n"
    assert why in out
    assert out.endswith("\n  no q, k, v  is_cuda\n")
    told = [line for line in out.splitlines() if not line.startswith(begins[:16])]
    assert max(map(len, told)) <= 80


def test_a_file_without_a_target_says_what_makes_one(folder):
    out, targets = found(folder, "def is_cuda():\n    return False\n")
    assert out.startswith("kernels.py: 0 of 1 function can be checked\n")
    assert "gradprobe init writes an adapter" in out
    assert targets["is_cuda"]["is_other"]
    kernel = "import triton\n@triton.jit\ndef backward(q_ptr):\n    pass\n"
    out, targets = found(folder, kernel)
    assert targets == {}
    told = "kernels.py has kernels and nothing that launches them (backward)"
    assert told in " ".join(out.split())
