"""`watch` on a GPU: the process that is forked from has Triton and no device, and each fork gets the device."""

import shutil
from pathlib import Path

import pytest

from tests.cli.command import ROOT
from tests.cli.watching import Watching, put

pytestmark = pytest.mark.gpu


def test_saves_are_answered_by_compiled_kernels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "kernels/triton/lazy.py", "own.py")
    right = Path("own.py").read_text()
    words = "own.py:lazy_intermediates --heads 2 --seqlen 40 --json out.json --fix-budget 0"
    with Watching(words) as watch:
        assert "now: match" in watch.until()
        assert '"backend": "triton"' in Path("out.json").read_text()
        put("own.py", right.replace("h * stride_doh", "h * stride_qh"))
        said = watch.until()
        assert "now: mismatch, was match" in said
        put("own.py", right)
        assert "now: match, was mismatch" in watch.until()
    assert watch.code == 130
