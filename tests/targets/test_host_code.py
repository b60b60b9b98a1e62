import inspect

import pytest
import torch

from gradprobe.frontends.cuda.host_code import checkable
from gradprobe.model.failures import UsageFailure
from gradprobe.targets.find import find_target

KERNEL = """
__global__ void delta_rows(const float* o, const float* dout, float* delta, long o_row, long do_row, int n, int d) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int i = 0; i < d && row < n; ++i) sum += o[row * o_row + i] * dout[row * do_row + i];
    if (row < n) delta[row] = sum;
}
"""
LAUNCH = "delta_rows<<<({rows} + 31) / 32, 32>>>(o, dout, delta, {o_row}, {do_row}, {rows}, d);"


@pytest.fixture
def target(tmp_path):
    def made(parameters: str, launch: str, more: str = ""):
        text = f"{KERNEL}\nvoid launch_delta({parameters}) {{ {launch} }}\n{more}"
        (tmp_path / "my.cu").write_text(text)
        return find_target(f"{tmp_path / 'my.cu'}:launch_delta")

    return made


def tensors(**sizes):
    n, g = sizes.get("n", 5), sizes.get("g", 3)
    rows = {name: torch.randn(2, 3, 5, 4) for name in ("q", "do", "o")}
    return rows | {name: torch.randn(2, g, n, 4) for name in ("k", "v")}


ROW = "const float *o, const float *dout, float *delta, long o_row, long do_row, int rows, int d"
WHOLE = "const float *o, const float *dout, float *delta, int batch, int n_heads, int seqlen, int d, cudaStream_t s"


def test_one_without_batches_and_heads_is_called_for_each(target):
    found = target(ROW, LAUNCH.format(rows="rows", o_row="o_row", do_row="do_row"))
    given = tensors()
    wide = torch.randn(2, 3, 5, 12)
    given["do"] = wide[..., :4]
    assert list(inspect.signature(found.function).parameters) == ["q", "k", "v", "do", "o"]
    assert (found.source.name, found.source.line, found.is_backward) == ("launch_delta", 9, True)
    delta = found.function(**given)
    assert [*delta] == ["delta"]
    assert torch.allclose(delta["delta"], (given["o"] * given["do"]).sum(-1), atol=1e-6)


def test_one_that_is_told_of_batches_and_heads_is_called_once(target):
    found = target(WHOLE, LAUNCH.format(rows="batch * n_heads * seqlen", o_row="d", do_row="d"))
    given = tensors()
    given["o"] = torch.randn(2, 5, 3, 4).transpose(1, 2)  # of whose strides it is not told
    delta = found.function(**given)["delta"]
    assert torch.allclose(delta, (given["o"] * given["do"]).sum(-1), atol=1e-6)


def test_a_layout_that_it_is_not_told_of_is_refused(target):
    found = target(ROW, LAUNCH.format(rows="rows", o_row="o_row", do_row="do_row"))
    given = tensors()
    with pytest.raises(ValueError, match=r"launch_delta is not told of o\.stride\(3\)"):
        found.function(**given | {"o": torch.randn(2, 3, 4, 5).mT})


def test_what_cannot_be_passed_is_told(target):
    parameters = "const float *o, const float *dout, float *delta, int magic"
    with pytest.raises(UsageFailure, match="needs a parameter 'magic'"):
        target(parameters, LAUNCH.format(rows="1", o_row="1", do_row="1"))


def test_a_name_that_is_no_launcher_lists_those_that_are(target, tmp_path):
    other = "void other(int magic) { launch_delta(0, 0, 0, 0, 0, 0, 0); }"
    target(ROW, LAUNCH.format(rows="rows", o_row="o_row", do_row="do_row"), other)
    with pytest.raises(UsageFailure) as refused:
        find_target(f"{tmp_path / 'my.cu'}:launch_delt")
    assert "did you mean 'launch_delta'" in refused.value.way_out
    assert checkable(tmp_path / "my.cu") == ["launch_delta"]
