"""A kernel's digest: another one after each change that its code can meet, the same one after all others."""

import builtins
import functools
import itertools
import runpy

import pytest
import torch
import triton
import triton.language as tl

from gradprobe.runtime.interpreter.memory.kernel_code import Digest, Language, Unknown

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only")

TEXT = '''
import math
import triton
import triton.language as tl

FACTOR, PAIR = 3, (1, 2)
TWICE = tl.constexpr(2)

def halves(x):
    return x / 2

@triton.jit
def innermost(x):
    return x * FACTOR

@triton.jit
def inner(x, add: tl.constexpr = 1):
    """Of the kernel."""
    return innermost(halves(x)) + add

@triton.jit
def other(x_ptr):
    tl.store(x_ptr, 1.0)

@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    y = inner(tl.exp(x)) * TWICE + math.pi * PAIR[1]
    for _ in range(2):
        y = y - x
    tl.store(out_ptr + offs, y, mask=offs < n)
'''
OTHERS = {
    "an operator": ("y = y - x", "y = x - y"),
    "a number": ("range(2)", "range(3)"),
    "the type of a number": ("range(2)", "range(True)"),
    "a mask": ("y, mask=offs < n", "y, mask=offs <= n"),
    "a function of the language": ("tl.exp(x)", "tl.exp2(x)"),
    "a constant of a module": ("math.pi", "math.e"),
    "a helper's helper": ("x * FACTOR", "x + FACTOR"),
    "a helper's default": ("constexpr = 1", "constexpr = 2"),
    "a function of Python": ("x / 2", "x / 4"),
    "a global number": ("= 3, (1, 2)", "= 4, (1, 2)"),
    "its type": ("= 3, (1, 2)", "= 3.0, (1, 2)"),
    "a number in a tuple": ("= 3, (1, 2)", "= 3, (1, 3)"),
    "a constexpr": ("constexpr(2)", "constexpr(3)"),
    "another helper of the name": ("return innermost(", "return other("),
    "a helper that is another's": ("@triton.jit\ndef other", "innermost = halves\n\n@triton.jit\ndef other"),
    "where it stands in a line": ("y = y - x", "y  =  y - x"),
}
SAME = {
    "a comment": ("y = y - x", "y = y - x  # the rest"),
    "lines above": ("\nFACTOR", "\n\n# Three.\n\nFACTOR"),
    "a line above, in another kernel": ("tl.store(x_ptr, 1.0)", "x_ptr += 1\n    tl.store(x_ptr, 2.0)"),
    "what no kernel reads": ("\nFACTOR", "\nUNREAD, FACTOR = 7, 3\nFACTOR"),
}
UNKNOWN = {
    "prints": ("y = y - x", "print(y)"),
    "prints as a device": ("y = y - x", 'tl.device_print("y", y)'),
    "prints in a helper": ("x * FACTOR", 'x * tl.static_print("x")'),
    "imports": ("y = y - x", "import math as m"),
    "keeps what others read": ("y = y - x", "global FACTOR\n        FACTOR = 4"),
    "sets what others read": ("y = y - x", "TWICE.value = 3"),
    "reads a list": ("= 3, (1, 2)", "= 3, [1, 2]"),
    "reads a class": ("FACTOR, PAIR", "class FACTOR: x = 1\nPAIR = 1, 2\nA, B"),
    "reads another module": ("math.pi", "triton.knobs.runtime"),
    "reads a module itself": ("math.pi * PAIR[1]", "getattr(math, 'pi')"),
    "reads what is not there": ("math.pi", "missing"),
    "opens files": ("math.pi", "open"),
    "a default that may change": ("add: tl.constexpr = 1", "add: tl.constexpr = []"),
    "a wrapped kernel": ("\n@triton.jit\ndef innermost", "\n@triton.heuristics({})\n@triton.jit\ndef innermost"),
}  # fmt: skip
NUMBERS = itertools.count()


@pytest.fixture
def digest(tmp_path):
    """Of the kernel of a text with one change; None where there is none."""

    def digest_of(find="", put=""):
        assert TEXT.count(find) == 1 or not find
        file = tmp_path / f"kernels_{next(NUMBERS)}.py"
        file.write_text(TEXT.replace(find, put) if find else TEXT)
        found = Digest()
        try:
            found.value(runpy.run_path(str(file))["kernel"])
        except Unknown:
            return None
        return found.hex

    return digest_of


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_each_change_that_the_code_can_meet_makes_it_another(digest, change):
    other = digest(*change)
    assert other is not None
    assert other != digest()


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_no_other_change_does(digest, change):
    assert digest(*change) == digest() is not None


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN)
def test_what_does_more_than_compute_or_may_change_has_none(digest, change):
    assert digest(*change) is None


def test_a_global_counts_as_it_is_when_the_kernel_is_launched(tmp_path):
    file = tmp_path / "kernels.py"
    file.write_text(TEXT)
    kernel, found = runpy.run_path(str(file))["kernel"], []
    for value in (3, 4, 3):
        kernel.fn.__globals__["FACTOR"] = value
        one = Digest()
        one.value(kernel)
        found.append(one.hex)
    assert found[0] == found[2] != found[1]


def test_closures_count_by_what_they_hold():
    def adding(number):
        return lambda x: x + number

    found = []
    for number in (1, 2, 1):
        one = Digest()
        one.value(adding(number))
        found.append(one.hex)
    assert found[0] == found[2] != found[1]
    with pytest.raises(Unknown):
        Digest().value(adding(builtins))


REPLACED = {
    "a function of the language": (tl, "exp"),
    "a class": (tl.core, "tensor"),
    "a method of tensors": (tl.tensor, "to"),
    "an operation": (triton.runtime.interpreter.InterpreterBuilder, "create_dot"),
    "a name of the interpreter": (triton.runtime.interpreter, "_get_np_dtype"),
}


@pytest.mark.parametrize("place", REPLACED.values(), ids=REPLACED)
def test_a_language_is_another_once_a_part_is_replaced(monkeypatch, place):
    language, (owner, name) = Language(), place
    assert language.is_same()
    monkeypatch.setattr(owner, name, functools.partial(getattr(owner, name)))
    assert not language.is_same()
    monkeypatch.undo()
    assert language.is_same()


def test_a_name_that_is_new_in_the_language_makes_it_another(monkeypatch):
    language = Language()
    monkeypatch.setattr(tl, "imported", builtins, raising=False)
    assert language.is_same()
    monkeypatch.setattr(tl, "added", 3, raising=False)
    assert not language.is_same()
