"""`gradprobe contract`: the verdict first, then each result in its parts, and the same in JSON."""

from __future__ import annotations

import json

from gradprobe.commands.contract_request import ReadContract, render_contract
from gradprobe.model.case import Case
from gradprobe.model.kernel_contract import Contract, Reading
from tests.cli.command import run


def test_pytorchs_attention_in_plain_operations_computes_in_float32(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run("contract sdpa-math --seqlen 48 --head-dim 16 --dtype bfloat16 --json read.json")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == "CONTRACT  sdpa-math, bfloat16: sums in float32"
    assert "  O = P V        P: float32; scores: float32; exp: good to 2^-22" in lines
    document = json.loads((tmp_path / "read.json").read_text())
    assert (document["schema"], document["verdict"], document["seed"]) == ("gradprobe.contract/1", "read", 0)
    (of_dv,) = [one for one in document["readings"] if one["of"] == "dV" and one["about"] == "roundings"]
    assert of_dv["fits"] == [{"P": "float32", "scores": "float32", "exp": "good to 2^-22"}]
    assert (of_dv["differing"], of_dv["elements"]) == (0, 2 * 48 * 16)


def test_what_says_nothing_here_is_refused():
    for words, told in {
        "--layout q=blhd": "--layout: contract runs contiguous values of its own, each once",
        "--head-dim 24": "--pattern dyadic: the scale must be a power of two, 1/64 or more, got 0.204124",
    }.items():
        ran = run(f"contract sdpa-math --seqlen 16 {words}")
        assert ran.code == 2
        assert told in ran.err


def reading(of: str, *fits: dict[str, str], sums: bool = False, differing: int = 0) -> Reading:
    return Reading(of, sums, fits, fits[0] if fits else {"P": "bfloat16"}, differing, 1000, 30, 2)


def shown(*readings: Reading, dtype: str = "bfloat16") -> list[str]:
    contract = Contract("mine", Case("softmax", dtype=dtype), 0, readings, ("dK is not given",))
    environment = {"device": "cpu", "torch": "2", "triton": "3"}
    return [line.plain for line in render_contract(ReadContract(contract, environment, "gradprobe contract mine"), 80)]


def test_coarser_sums_stand_in_the_first_line_and_ways_that_fit_alike_beside_one_another():
    kept = {"sums": "bfloat16, rounded after each 64 query rows, from the first"}
    ways = [{"P": word} for word in ("bfloat16", "float16", "TF32, cut", "TF32, rounded")]
    lines = shown(reading("dV", *ways), reading("dV", kept, sums=True))
    assert lines[:2] == [
        "CONTRACT  mine, bfloat16: sums dV in bfloat16, rounded after each 64 query rows,",
        "          from the first",
    ]
    assert "  dV = P^T dO    P: bfloat16 or float16, or 2 more" in lines
    assert "  dK is not given" in lines


def test_a_part_that_one_of_two_ways_names_is_float32_in_the_other():
    for ways in (
        [{"dS": "bfloat16"}, {"dS": "bfloat16", "P": "bfloat16"}],
        [{"P": "bfloat16", "dS": "bfloat16"}, {"dS": "bfloat16"}],
    ):
        assert set(reading("dQ", *ways).parts["P"]) == {"float32", "bfloat16"}


def test_where_no_way_fits_the_nearest_is_told_with_what_differs():
    lines = shown(reading("dV", differing=7))
    assert lines[0] == "NOT READ  mine, bfloat16: no known way gives the bits of dV"
    assert "  dV = P^T dO    nearest of 30 ways, 7 of 1,000 elements differ; P: bfloat16" in lines


def test_how_float32_is_multiplied_stands_in_the_first_line():
    assert "mine, float32: multiplies in IEEE float32" in shown(reading("dV", {"P": "float32"}), dtype="float32")[0]
    coarse = shown(reading("dV", {"P": "float32", "scores": "TF32, cut"}), dtype="float32")
    assert "multiplies in TF32 or coarser" in coarse[0]
