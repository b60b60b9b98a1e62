"""A look into a long black box on a GPU: a few runs, and memory that does not grow with the square of its length."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from gradprobe.inputs.draw import draw
from gradprobe.model.resolution import resolve
from gradprobe.numerics.black_box.look import Examiner
from gradprobe.numerics.black_box.sampling import sampled
from gradprobe.runtime.trace import read_trace
from tests.black_box import measure_of

pytestmark = pytest.mark.gpu

GIB = 1 << 30


@pytest.mark.parametrize(("seqlen", "heads", "most"), [(8192, 16, 3.0), (65536, 8, 9.0)])
def test_a_look_at_flash_attention_takes_little_memory_and_is_right(seqlen, heads, most):
    options = {"batch": 1, "heads": heads, "seqlen": seqlen, "head_dim": 128, "dtype": "bfloat16", "causal": True}
    case = resolve({**options, "device": "cuda"}, "softmax", takes_bias=False)
    values, asked = {name: value.cuda() for name, value in draw(case).items()}, []

    def run(assigned, of, given, first):  # noqa: ARG001
        asked.append(of.batch)
        q, k, v = (given[name].detach().requires_grad_() for name in "qkv")
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=of.scale)
        found = torch.autograd.grad(out, (q, k, v), given["do"])
        return read_trace(dict(zip(("dQ", "dK", "dV"), found, strict=True)), of, "flash")

    # Of an ordinary run only the diagonal is asked for, where nothing is wrong.
    x = SimpleNamespace(diagonal=lambda tile: torch.arange(tile.rows.stop, device="cuda")[:, None])
    own = SimpleNamespace(x=x, comparison=SimpleNamespace(matches=True, findings={}))
    examiner = Examiner(case, values, (), run, measure_of(case), own, lambda: values, sampled(case, values, own))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    recovered = examiner.recovered()
    measured = examiner.compared(recovered)
    beyond = (torch.cuda.max_memory_allocated() - before) / GIB
    print(f"L = {seqlen}: {beyond:.2f} GiB beyond the case's inputs")
    findings = measured.comparison.findings
    assert {name: one.max_ratio <= 1 for name, one in findings.items()} == dict.fromkeys(findings, True)
    assert set(findings) == {"P", "dP", "delta", "dS", "dQ", "dK", "dV"}
    assert asked == [1]
    assert beyond < most
