import json

import pytest
import torch

from tests.cli.command import run
from tests.cli.test_cli_errors import assert_message
from tests.cli.test_cli_run import ATTENTION

pytestmark = pytest.mark.usefixtures("without_causes")


def tensors(batch=2, heads=3, rows=20, dim=8, **more):
    generator = torch.Generator().manual_seed(1)
    names = ("q", "k", "v", "do")
    return {
        name: torch.randn(batch, rows, heads, dim, generator=generator).transpose(1, 2)
        for name in names
    } | more


OWN = f"""{ATTENTION}
def takes_saved_lse(q, k, v, do, *, scale, o, lse):
    p = (scale * q @ k.mT - lse[..., None]).exp()
    dp = do @ v.mT
    ds = p * (dp - (do * o).sum(-1, keepdim=True))
    return {{"P": p, "dQ": scale * ds @ k, "dK": scale * ds.mT @ q, "dV": p.mT @ do}}
"""


@pytest.fixture
def real(folder):
    (folder / "own.py").write_text(OWN)
    torch.save(tensors(), folder / "real.pt")
    return folder


def test_a_right_target_matches_on_20_rows_as_saved_contiguous_and_distinct(real):
    report = json.loads(run("check soft.py:backward --inputs real.pt --json -").out)
    assert [(ran["layout"], ran["verdict"]) for ran in report["runs"]] == [
        ("as-saved", "match"), ("contiguous", "match"), ("distinct", "match"),
    ]  # fmt: skip
    keys = ("inputs", "batch", "heads", "seqlen_q", "head_dim", "causal", "bias")
    case = tuple(report["case"][key] for key in keys)
    assert case == ("real.pt", 2, 3, 20, 8, False, False)


def test_a_stride_taken_for_contiguous_is_wrong_as_saved_and_right_contiguous(real):
    ran = run("check own.py:do_contiguous --inputs real.pt --no-recover")
    assert ran.code == 1
    assert "(own.py:do_contiguous, as-saved)" in ran.out
    assert "Right when contiguous" in ran.out
    assert "the values are those of real.pt" in ran.out
    again = ran.out.partition("again: gradprobe ")[2].splitlines()[0]
    assert again.startswith("check own.py:do_contiguous --inputs real.pt")
    assert run(again).first_mismatches == ran.first_mismatches
    ran = run("check own.py:do_contiguous --inputs real.pt --layout do=contiguous")
    assert ran.code == 0


@pytest.mark.parametrize(
    ("key", "change", "words"),
    [
        ("lse", lambda lse: lse * 1.4426950408889634, "lse is not the LSE of its q, k and v: it is LSE * log2(e)"),
        ("o", lambda o: o.index_fill(2, torch.tensor(7), 0.5),
         "o is not the O of its q, k and v: 6 of 120 rows differ"),
    ],
)  # fmt: skip
def test_a_file_whose_lse_or_o_is_not_that_of_its_q_k_and_v_is_wrong(real, key, change, words):
    found = tensors()
    scores = 8**-0.5 * found["q"] @ found["k"].mT
    right = {"lse": scores.logsumexp(-1), "o": scores.softmax(-1) @ found["v"]}
    torch.save(found | right, real / "right.pt")
    torch.save(found | right | {key: change(right[key])}, real / "wrong.pt")
    wrong = run("check own.py:takes_saved_lse --inputs wrong.pt")
    assert wrong.code == 3
    assert f"wrong.pt: its {words}" in " ".join(wrong.err.split())
    if key == "o":  # nothing is judged by what the target does not take
        assert run("check soft.py:backward --inputs wrong.pt").code == 0
        assert run("check own.py:takes_saved_lse --inputs right.pt").code == 0


CONTRADICTIONS = [
    ("real.pt --heads 4", "--heads 4 contradicts real.pt, where it is 3"),
    ("real.pt --mask random", "--mask: nothing is drawn"),
    ("real.pt --seed 3", "--seed: nothing is drawn, the values come from real.pt"),
    ("real.pt --dropout 0.1", "real.pt: it has no keep"),
    ("opted.pt --no-causal", "--no-causal contradicts opted.pt, where it is True"),
    ("none.pt", "--inputs none.pt: there is no such file"),
    (
        "lazy.pt --family softmax",
        "inputs of the lazy family, and the target is of the softmax family",
    ),
]


@pytest.mark.parametrize(("words", "piece"), CONTRADICTIONS)
def test_what_contradicts_the_file_exits_2(real, words, piece):
    torch.save(tensors(scale=0.25, causal=True), real / "opted.pt")
    torch.save(tensors(tau=torch.zeros(3), family="lazy"), real / "lazy.pt")
    ran = run(f"check soft.py:backward --inputs {words}")
    assert ran.code == 2
    assert_message(ran, piece)
