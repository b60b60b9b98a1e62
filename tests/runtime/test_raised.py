"""What Triton's compiler refuses, for a Hopper GPU that need not be there."""

import os
import subprocess
import sys

import pytest

from tests.cli.command import ROOT
from tests.runtime.raising_cases import assert_told

PROGRAM = """
import sys, torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from gradprobe.frontends import Launches
from gradprobe.frontends.triton.launches import recorded_launches
from gradprobe.frontends.triton.raised import compiler_place, describe_line
from tests.runtime import raising_kernels

def launch(kernel, *args, grid, warmup, **constants):
    names = dict.fromkeys(kernel.arg_names, "i32") | {"x": "*fp32"} | dict.fromkeys(constants, "constexpr")
    triton.compile(ASTSource(kernel, names, {(kernel.arg_names.index(n),): v for n, v in constants.items()}),
                   target=GPUTarget("cuda", 90, 32))

triton.runtime.jit.JITFunction.run = launch
try:
    with recorded_launches(Launches()):
        getattr(raising_kernels, sys.argv[1])(*[torch.zeros(1, 2, 20, 24)] * 4, 1.0)
except Exception as error:
    line, words = compiler_place(error)
    print(f"gradprobe: raising_kernels.py:{line.line}: {words}", *describe_line(error), sep="\\n")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["undefined", "dot", "arange", "calling", "asserting"])
def test_the_types_of_a_line_that_does_not_compile_are_told(name):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, name]
    ran = subprocess.run(
        command,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert_told(name, ran.stdout)
