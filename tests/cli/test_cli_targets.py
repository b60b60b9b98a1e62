import json
from pathlib import Path

import pytest

from gradprobe.model.intermediates import names
from tests.cli.command import run


@pytest.fixture(autouse=True)
def _without_cuda(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def test_every_target_is_listed_with_what_it_takes_and_exposes_or_what_it_needs():
    ran = run("init --list --json list.json", COLUMNS="80")
    assert (ran.code, ran.err) == (0, "")
    paragraph = (
        ran.out.partition("\ngradprobe check sdpa-math\n")[2].partition("\n\n")[0].splitlines()
    )
    assert paragraph[0] == "             PyTorch's SDPA of plain operations"
    assert paragraph[1].startswith("  family     softmax, a forward through autograd, sdpa.py:")
    assert paragraph[2:] == [
        "  takes      --causal --align --window --scale --bias --alibi --mask --seqlens",
        "  exposes    O dQ dK dV dBias",
    ]
    assert max(map(len, ran.out.splitlines())) <= 80
    assert ran.out.count("not here   needs a CUDA device\n") == 2
    document = json.loads(Path("list.json").read_text())
    targets = {target["name"]: target for target in document["targets"]}
    assert document["schema"] == "gradprobe.targets/1"
    refused = {name: target["refused"] for name, target in targets.items() if target["refused"]}
    assert refused == {
        "sdpa-efficient": "needs a CUDA device", "sdpa-cudnn": "needs a CUDA device",
    }  # fmt: skip
    lazy = targets["lazy"]
    assert (lazy["family"], lazy["is_backward"]) == ("lazy", True)
    assert set(lazy["exposes"]) == set(names()) - {"dSink", "dAlibi"}
