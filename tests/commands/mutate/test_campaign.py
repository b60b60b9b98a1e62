"""Every mutant is put to the gate, in processes that end, and the file as it is before them."""

import os
import shlex
import sys

import pytest

from gradprobe.commands.mutants import Campaign, Gate, mutants_of, read_file
from gradprobe.inputs import history
from gradprobe.model.failures import TargetFailure, UsageFailure

# Triton is not needed: any decorator called jit makes a kernel, and this one runs as it stands.
FILE = """
class triton:
    jit = staticmethod(lambda function: function)

@triton.jit
def kernel(x, scale, FLAG):
    y = x * scale
    if FLAG:
        y = y * scale
    return y

def run(x):
    return kernel(x, 3, False)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels.py").write_text(FILE)
    return read_file(tmp_path / "kernels.py", None)


def made(file, gate, workers=2, timeout=20.0):
    mutants = tuple(mutants_of(file))
    asked = Campaign("kernels.py", gate, file, len(mutants), mutants, workers, timeout)
    assert list(asked.run()) == [*range(1, len(mutants) + 1)]
    return asked


def test_a_mutant_that_hangs_is_stopped_and_counts_as_killed(file):
    program = "import kernels, time; kernels.run(2) == 6 or time.sleep(600)"
    gate = Gate.of(shlex.join([sys.executable, "-c", program]))
    found = made(file, gate, workers=1, timeout=2.0)
    (killed,) = found.having("killed")
    assert killed.words == "no answer within 2 s: stopped"


@pytest.mark.parametrize(
    ("gate", "failure", "words"),
    [
        (["-c", "import kernels; assert kernels.run(2) == 7, 'seven'"], TargetFailure,
         "the gate fails without any fault: .*AssertionError: seven"),
        (["-c", "print('fine')"], TargetFailure, r"passes, but never imports .*kernels\.py"),
        (None, UsageFailure, "cannot be started"),
    ],
)  # fmt: skip
def test_a_gate_that_cannot_tell_is_refused(file, gate, failure, words):
    command = shlex.join([sys.executable, *gate]) if gate else "no-such-command"
    with pytest.raises(failure, match=words):
        made(file, Gate.of(command))


def test_the_check_of_a_mutant_is_not_remembered_as_the_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADPROBE_MUTANT", "{}")
    history.save(history.CheckRequest("lazy", None, None, {}))
    assert os.listdir(tmp_path) == []
