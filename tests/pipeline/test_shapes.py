import pytest

from gradprobe.model.failures import UsageFailure
from gradprobe.model.resolution import resolve
from tests.cli.command import run

pytestmark = pytest.mark.usefixtures("without_causes")

WRITTEN = '''
import torch

def attention(q, k, v, *, causal, scale):
    """Of [..., L, D]: its backward is autograd's."""
    s = scale * q @ k.transpose(-1, -2)
    seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril() | (not causal)
    s = s.masked_fill(~seen, float("-inf"))
    return s.softmax(-1) @ v, s.logsumexp(-1)

def blhd(q, k, v, *, causal, scale):
    assert all(tensor.is_contiguous() for tensor in (q, k, v)) and q.shape[1:] == (37, 2, 8)
    o, lse = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=causal, scale=scale)
    return {"O": o.transpose(1, 2), "LSE": lse.transpose(1, 2)}

def blhd_backward(q, k, v, do, *, causal, scale, o, lse, dq):
    q, k, v, do, o = (tensor.transpose(1, 2) for tensor in (q, k, v, do, o))
    p = (scale * q @ k.mT - lse[..., None]).exp()
    p = p.tril() if causal else p
    ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
    dq.copy_((scale * ds @ k).transpose(1, 2))
    return {"dS": ds, "dK": (scale * ds.mT @ q).transpose(1, 2), "dV": (p.mT @ do).transpose(1, 2)}
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shaped.py").write_text(WRITTEN)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("blhd", "--shapes bshd --runs contiguous"),
        ("blhd_backward", "--shapes blhd --causal"),
    ],
)
def test_a_target_of_other_shapes_matches_in_every_run_with_its_lse_in_the_order_that_it_has(
    folder, target, words
):
    found = run(f"check shaped.py:{target} {words} --heads 2 --seqlen 37 --head-dim 8")
    assert (found.code, found.err) == (0, "")
    assert "LSE" in found.out.split("exported:")[1] or target == "blhd_backward"


def test_shapes_without_batches_take_one(folder):
    assert (resolve({"shapes": "lhd"}, "softmax", takes_bias=False).batch) == 1
    assert (resolve({"shapes": "bld"}, "softmax", takes_bias=False).heads) == 1
    with pytest.raises(
        UsageFailure, match=r"--shapes lhd: \[L, H, D\] holds one of --batch, got 2"
    ):
        resolve({"shapes": "lhd", "batch": 2}, "softmax", takes_bias=False)
