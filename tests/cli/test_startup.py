"""What needs no kernel is answered before torch is imported: help, versions, and words that nobody can mean."""

import json
import subprocess
import sys

import pytest

from gradprobe.targets.definitions import refuse_mistyped
from tests.cli.command import ROOT

pytestmark = pytest.mark.usefixtures("real_processes")
MISTYPED = {
    "check lasy": "did you mean 'lazy'?",
    "check kernel.py:lazy_atention": "did you mean 'lazy_attention'? it has: Softmax, lazy_attention",
    "check kernal.py:lazy_attention": "did you mean 'kernel.py'?",
    "check --dtype flota16": "did you mean 'float16'?",
    "check --layout doo=expanded": "did you mean 'do'?",
    "check --dtype fp16": "did you mean 'float16'?",
    "check --against interpretd": "did you mean 'interpreted'?",
    "check kernel.py:": "it has kernel.py:lazy_attention",
    "check two.py": "names no function\n  it has two.py:forward, two.py:backward",
    "check none.py": "no function that can be checked as it stands\n  none.py:FUNCTION tells why",
    "init --family sofmax": "did you mean 'softmax'?",
    "show kernl.json": "did you mean 'kernel.json'?",
    "check lazy --battery=piars": "did you mean 'pairs'?",
    "run --watch a:b --target lazzy -- true": "did you mean 'lazy'?",
}
KERNEL = """
import torch
if torch.cuda.is_available:
    def lazy_attention(q, k, v, do):
        return {}
class Softmax(torch.autograd.Function):
    pass
def _helper():
    pass
"""
# Runs each command line in one process, in which none can be started: its exit code, its stderr, and what is loaded.
SCRIPT = """
import contextlib, io, json, subprocess, sys
def refuse(*words, **more):
    raise AssertionError("a process was started")
subprocess.Popen.__init__ = refuse
from gradprobe.cli import main
ends = []
for words in sys.argv[1:]:
    sys.argv = ["gradprobe", *words.split()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as told:
        try:
            main()
        except SystemExit as ended:
            ends.append((ended.code, told.getvalue(), sorted({"torch", "triton", "numpy"} & set(sys.modules))))
print(json.dumps(ends))
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "kernel.json").write_text("{}")
    (tmp_path / "two.py").write_text(
        "def forward(q, k, v): pass\ndef backward(q, k, v, do): pass\ndef other(x): pass\n"
    )
    (tmp_path / "none.py").write_text("def other(x): pass\n")
    return tmp_path


def test_mistyped_words_exit_2_with_the_one_meant_and_neither_torch_nor_a_process(kernel):
    command = [sys.executable, "-c", SCRIPT, "--version", *MISTYPED]
    # no core is free to import torch meanwhile
    environment = {"PYTHONPATH": str(ROOT), "GRADPROBE_SHARED_BY": "1000"}
    ran = subprocess.run(command, capture_output=True, check=True, cwd=kernel, env=environment)
    versions, *ends = json.loads(ran.stdout)
    assert versions == [0, "", []]
    for (words, close), (code, told, loaded) in zip(MISTYPED.items(), ends, strict=True):
        assert (words, code, loaded) == (words, 2, [])
        assert close in told, words


EARLY = """
import os, sys
from gradprobe.cli import main
from gradprobe.processes import process, resource_limits
resource_limits.cores = lambda: 2
begun, before = [], process.Child._started
process.Child._started = lambda *words: begun.append(before(*words)) or begun[-1]
sys.argv = ["gradprobe", *sys.argv[1:]]
try:
    main()
except SystemExit:
    print([one.returncode for one in begun])
"""


def test_the_process_that_imports_torch_while_words_are_read_checks_and_is_gone_once_they_are_mistyped():
    environment = {"PYTHONPATH": str(ROOT)}
    for words, codes in {
        "check lasy": [-9],
        # not another
        "check sdpa-math --batch 1 --heads 1 --seqlen 8 --head-dim 8 --layout contiguous": [-9],
        "check lasy --no-isolate": [],
    }.items():
        command = [sys.executable, "-c", EARLY, *words.split()]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
        assert ran.stdout.splitlines()[-1] == str(codes), words


@pytest.mark.parametrize(
    "text",
    [
        "globals()['la' + 'zy'] = print",
        "from os.path import *",
        "def __getattr__(name): return print",
        "lazy: object",
        "for lazy in (print,): pass",
        "def lazy(: a mistake",
    ],
)
def test_a_name_that_a_file_may_make_is_left_to_its_import(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.py").write_text(text)
    refuse_mistyped("made.py:lazy")
    refuse_mistyped("made.py:lazy.apply")
