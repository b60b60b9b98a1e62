import json

from gradprobe.commands.contract_request import Contract, render_contract
from gradprobe.model.case import Case
from tests.cli.command import run


def test_pytorchs_attention_in_plain_operations_computes_in_float32(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "--seqlen 48 --head-dim 16 --dtype bfloat16 --json read.json"
    ran = run(f"check sdpa-math --contract {words}")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0] == "CONTRACT  sdpa-math, bfloat16: sums in float32"
    document = json.loads((tmp_path / "read.json").read_text())
    told = document["schema"], document["verdict"], document["sums"]
    assert told == ("gradprobe.contract/3", "read", {})


def first_line(dtype: str = "bfloat16", **more) -> str:
    environment = {"device": "cpu", "torch": "2", "triton": "3"}
    contract = Contract("mine", Case("softmax", dtype=dtype), environment=environment, **more)
    return render_contract(contract, 80)[0].plain


def test_the_first_line_says_what_is_not_read_and_how_float32_is_multiplied():
    assert first_line(unread=("dV",)) == "NOT READ  mine, bfloat16: no known way gives dV"
    assert "mine, float32: multiplies in IEEE float32" in first_line("float32", dots="ieee")
    assert "multiplies in TF32 or coarser" in first_line("float32", dots="tf32")
