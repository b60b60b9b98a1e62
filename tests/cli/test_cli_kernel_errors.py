"""What a kernel raises in the interpreter is told with its own line and words."""

import json

import pytest
import torch

from tests.cli.command import run
from tests.runtime.raising_cases import CASE, KERNELS, assert_told

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the compiler says these things in its own way"
)


def test_what_stood_where_it_was_raised_is_told_with_what_of_it_is_the_case_s(folder):
    for name in ("calling", "arange"):
        ran = run(f"check {KERNELS}:{name} {CASE}")
        assert ran.code == 3
        assert_told(name, ran.err)


def test_a_variable_that_breaks_whoever_looks_at_it_is_left_alone(folder):
    ran = run(f"check {KERNELS}:odd {CASE} --json out.json")
    assert "raised KeyError (contiguous): <" in ran.err
    assert json.loads((folder / "out.json").read_text())["error"]["details"][1:] == [
        "    return {}[thing]"
    ]
