import json

from tests.cli.command import run

SOURCE = """
extern "C" __global__ void rows(const float* o, const float* dout, float* delta, int n_rows, int width) {
    __shared__ float part[8][8];
    const int row = blockIdx.x * 8 + threadIdx.y;
    float sum = 0.0f;
    for (int d = threadIdx.x; row < n_rows && d < width; d += 8) {
        sum += o[row * width + d] * dout[row * width + d];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    BARRIER
    if (threadIdx.x == 0 && row < n_rows) {
        float total = 0.0f;
        for (int i = 0; i < 8; ++i) total += part[threadIdx.y][i];
        delta[row] = total;
    }
}
"""
ADAPTER = """
import torch
import gradprobe.cuda

def delta_alone(q, k, v, do, *, scale, o):
    kernels = gradprobe.cuda.load("delta.cu")
    o, do = o.contiguous(), do.contiguous()
    delta = torch.empty(o.shape[:3])
    rows = delta.numel()
    kernels.rows(-(-rows // 8), (8, 8), 0, o, do, delta, rows, o.shape[3])
    return {"delta": delta}
"""
SMALL = "--batch 1 --heads 2 --seqlen 20 --head-dim 12"


def written(folder, barrier="__syncthreads();", **edits):
    source = SOURCE.replace("BARRIER", barrier)
    for old, new in edits.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    (folder / "delta.cu").write_text(source)
    (folder / "mine.py").write_text(ADAPTER)
    return f"check mine.py:delta_alone {SMALL}"


def test_a_race_whose_numbers_are_wrong_or_right_is_a_mismatch_with_both_lines(folder):
    ran = run(f"{written(folder, barrier='')} --json found.json --sarif found.sarif")
    assert ran.code == 1
    words = " ".join(ran.out.split())
    assert "rows: race on shared part[" in words
    assert "fix: put a barrier between the two: __syncthreads()" in words
    assert "delta.cu:9 `part[threadIdx.y][threadIdx.x] = sum;`" in words
    assert "delta.cu:13 `for (int i = 0; i < 8; ++i) total += part[threadIdx.y][i];`" in words
    runs = json.loads((folder / "found.json").read_text())["runs"]
    races = {
        (one["kernel"], one["tensor"])
        for run in runs for one in run["memory"] if one["kind"] == "race"
    }  # fmt: skip
    assert races == {("rows", "part")}
    (log,) = json.loads((folder / "found.sarif").read_text())["runs"]
    assert "GP013" in [result["ruleId"] for result in log["results"]]


def test_a_race_that_the_cpu_computes_rightly_is_the_first_mismatch_without_a_number(folder):
    # The last of the threads that store there is the right one.
    last = {"delta[row] = total": "delta[row] = threadIdx.x < 7 ? 0.0f : total"}
    ran = run(written(folder, **{"threadIdx.x == 0 && row": "row"}, **last))
    assert ran.code == 1
    assert "every element is within budget, but two programs or threads touch one" in " ".join(
        ran.out.split()
    )
    assert (
        "\nFIRST MISMATCH delta batch=- head=- row=- col=- tile=-,- actual=- expected=- ratio=-\n"
        in ran.out
    )
    assert "race on delta[0, 0, 0]" in " ".join(ran.out.split())
