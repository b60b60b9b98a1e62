import pytest

from tests.cli.command import checked, run

pytestmark = pytest.mark.usefixtures("without_causes")

WRITTEN = """
import torch

def attend(q, k, v, seen=True, bias=0.0):
    s = (q @ k.mT) * q.shape[-1] ** -0.5 + bias
    return s.masked_fill(~torch.as_tensor(seen), float("-inf")).softmax(-1) @ v

def mask_of_heads(q, k, v, mask):
    assert mask.dim() == 3
    return attend(q, k, v, mask if len(mask) == q.shape[1] else mask[0].roll(5, -1))

def padding_of_2(q, k, v, mask):
    batches, keys = mask.shape
    return attend(q, k, v, mask[:, None, None])

def bias_and_mask(q, k, v, bias, mask):
    assert mask.dim() == 2
    assert bias.dim() == 3
    return attend(q, k, v, mask, bias)

def bias_read_as_3(q, k, v, bias):
    of_head, of_row, of_key = bias.contiguous().stride()[:3]
    h, m, n = (torch.arange(size) for size in (q.shape[1], q.shape[2], k.shape[2]))
    at = h[:, None, None] * of_head + m[:, None] * of_row + n * of_key
    return attend(q, k, v, True, bias.flatten()[at % bias.numel()])

"""
SMALL = "--runs contiguous --runs distinct --no-recover"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranks.py").write_text(WRITTEN)
    return tmp_path


@pytest.mark.parametrize("words", [
    "mask_of_heads --mask random --mask-axes hmn --mask-rank 3",
    "padding_of_2 --mask padding --mask-rank 2",
    "bias_and_mask --bias --mask random --bias-rank 3 --mask-axes mn --mask-rank 2",
    "bias_read_as_3 --bias --bias-rank 3",
])  # fmt: skip
def test_a_target_is_given_the_rank_that_is_asked_for(words):
    code, report = checked(f"ranks.py:{words} {SMALL}")
    assert (code, report["verdict"]) == (0, "match")
    status = {row["name"]: row["status"] for row in report["runs"][0]["intermediates"]}
    assert (status.get("dBias", "not exposed") != "not exposed") == ("--bias" in words)


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        ("--mask random --mask-rank 2", "--mask-rank 2: this mask has the 4 axes bhmn"),
        ("--bias --bias-rank 5", "--bias-rank must be 2, 3 or 4, got 5"),
        ("--bias-rank 3", "--bias-rank: this case has no bias"),
        (
            "--mask padding --mask-axes mn",
            "--mask-axes: a padding mask has the axes bn, got 'mn'",
        ),
        ("--mask random --mask-axes bn", "--mask-axes: a random mask has m and n, got 'bn'"),
    ],
)
def test_a_rank_that_no_mask_has_is_a_wrong_command(words, piece):
    ran = run(f"check ranks.py:bias_and_mask {words}")
    assert ran.code == 2
    assert piece in ran.err
