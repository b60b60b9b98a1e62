"""What a compiler refuses is told as what the interpreter refuses: line, shapes, and what of the case led there."""

import pytest

from tests.cli.command import run_process
from tests.runtime.raising_cases import CASE, KERNELS, TOLD, assert_told

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", TOLD)
def test_what_stood_where_it_was_raised_is_told(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run_process(f"check {KERNELS}:{name} {CASE} --device cuda")
    assert ran.code == 3
    assert_told(name, ran.err)
