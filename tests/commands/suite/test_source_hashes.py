"""What made a result is part of it: a helper, a module, a reference, inputs. Once one has changed, it is none."""

import importlib.metadata
import json
import os
from pathlib import Path

import pytest
import torch

from gradprobe.inputs import history
from gradprobe.inputs.versions import installed_versions
from gradprobe.model.documents import report_from
from tests.cli.command import run

HELPER = """
import torch

def attention(q, k, v, do):
    p = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    return {"dQ": ds @ k * q.shape[-1] ** -0.5, "dV": p.mT @ do}
"""
TARGET = """
import random
from .helper import attention

def backward(q, k, v, do):
    found = attention(q, k, v, do)
    return found | {"dQ": FACTOR * found["dQ"]}
"""
SMALL = "--batch 1 --heads 2 --seqlen 20 --head-dim 8 --no-recover --device cpu"


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/__init__.py").touch()
    Path("mine/helper.py").write_text(HELPER)
    Path("mine/random.py").write_text("raise ImportError('this is not the one meant')\n")
    Path("mine/kernels.py").write_text(TARGET.replace("FACTOR", "2.0"))


def test_what_a_dead_process_came_to_is_made_again():
    dead = "import os\n\ndef backward(q, k, v, do):\n    os.abort()\n"
    Path("mine/kernels.py").write_text(dead)
    words = f"{SMALL} --seed 1 --seed 2 --journal j.jsonl"
    assert run(f"sweep mine.kernels:backward {words}").code == 3
    Path("mine/kernels.py").write_text(TARGET.replace("FACTOR", "1.0"))
    resumed = run("sweep --resume j.jsonl")
    assert (resumed.code, "2 match" in resumed.out) == (0, True)


def kept(words):
    how = "--fix-budget 0 --no-recover --json report.json"
    assert run(f"check mine/kernels.py:backward {words} {how}").code == 1
    return report_from(json.loads(Path("report.json").read_text()))


def test_files_and_versions_that_made_a_report_stand_in_it(tmp_path, monkeypatch):
    torch.save({name: torch.randn(1, 2, 20, 8) for name in ("q", "k", "v", "do")}, "inputs.pt")
    Path("own.py").write_text("from mine.helper import attention as reference\n")
    report = kept("--inputs inputs.pt --reference own.py:reference --device cpu")
    own = ["mine/__init__.py", "mine/helper.py", "mine/kernels.py", "inputs.pt", "own.py"]
    assert {f"{tmp_path}/{name}" for name in own} <= report.sources.keys()
    assert history.changed_since(report) == []
    document = json.loads(Path("report.json").read_text())
    older = report_from(document | {"environment": document["environment"] | {"torch": "1.0"}})
    assert history.changed_since(older) == ["torch"]
    # Wheels of torch say 2.13.0 in their metadata and 2.13.0+cu130 in themselves.
    version = importlib.metadata.version
    plain = lambda name: version(name).partition("+")[0]  # noqa: E731
    monkeypatch.setattr(importlib.metadata, "version", plain)
    installed_versions.cache_clear()
    assert history.changed_since(report) == []
    os.remove("mine/helper.py")
    assert history.changed_since(report) == [f"{tmp_path}/mine/helper.py"]
