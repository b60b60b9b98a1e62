"""`gradprobe check --contract`: the verdict first, then each result in its parts, and the same in JSON."""

from __future__ import annotations

import json

from gradprobe.commands.contract_request import Contract, render_contract
from gradprobe.model.case import Case
from gradprobe.numerics.rounded_parts import RoundedParts
from tests.cli.command import run


def test_pytorchs_attention_in_plain_operations_computes_in_float32(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run(
        "check sdpa-math --contract --seqlen 48 --head-dim 16 --dtype bfloat16 --json read.json"
    )
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == "CONTRACT  sdpa-math, bfloat16: sums in float32"
    assert "  O = P V        P: float32" in lines
    assert "  dV = P^T dO    P: float32; sums: float32" in lines
    document = json.loads((tmp_path / "read.json").read_text())
    assert (document["schema"], document["verdict"]) == ("gradprobe.contract/2", "read")
    (of_dv,) = [one for one in document["roundings"] if one["of"] == "dV"]
    assert of_dv["parts"] == {"P": ["float32"]}
    assert of_dv["left"] < 2


def shown(*roundings: RoundedParts, dtype: str = "bfloat16", **more) -> list[str]:
    environment = {"device": "cpu", "torch": "2", "triton": "3"}
    contract = Contract(
        "mine",
        Case("softmax", dtype=dtype),
        roundings=roundings,
        absent=("dK",),
        environment=environment,
        **more,
    )
    return [line.plain for line in render_contract(contract, 80)]


def test_where_no_way_fits_the_nearest_is_told_and_how_float32_is_multiplied_in_the_first_line():
    lines = shown(RoundedParts("dV", {"P": ["bfloat16"]}, 49.0), unread=("dV",))
    assert lines[0] == "NOT READ  mine, bfloat16: no known way gives dV"
    assert (
        "  dV = P^T dO    nearest, and off by 7 times what storing it adds; P: bfloat16;" in lines
    )

    assert "mine, float32: multiplies in IEEE float32" in shown(dtype="float32", dots="ieee")[0]
    assert "multiplies in TF32 or coarser" in shown(dtype="float32", dots="tf32")[0]
