import pytest

from tests.cli.command import checked

pytestmark = pytest.mark.usefixtures("without_causes")

WRITTEN = """
import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (16, 32, 64)]

@triton.autotune(configs=CONFIGS, key=["rows"])
@triton.jit
def delta_kernel(do, o, delta, rows, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 64)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    seen = row[:, None] < rows
    sums = tl.sum(tl.load(do + at, seen, 0.0) * tl.load(o + at, seen, 0.0), 1)
    tl.store(delta + row, sums, row < rows)

def right(q, k, v, do, *, o):
    delta = torch.zeros(do.shape[:3], device=do.device)
    grid = lambda meta: (triton.cdiv(delta.numel(), meta["BLOCK"]),)
    delta_kernel[grid](do.contiguous(), o.contiguous(), delta, delta.numel(), do.shape[3])
    return {"delta": delta}
"""
OF_ANOTHER_TUNER = """
from triton.runtime.autotuner import Autotuner

class OnDisk(Autotuner):
    def run(self, *args, **kwargs):
        return self.fn.run(*args, **kwargs, **min(self.configs, key=self.timed).all_kwargs())

    def timed(self, config):
        return self.do_bench(lambda: None, quantiles=(0.5,))

tuned = delta_kernel
delta_kernel = OnDisk(tuned.fn, tuned.arg_names, CONFIGS, ["rows"], None, None)
"""
SMALL = "--batch 1 --heads 1 --seqlen 72 --head-dim 16 --runs contiguous"


def test_a_tuner_that_is_derived_from_tritons_runs_the_first_that_fits_and_times_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.py").write_text(WRITTEN + OF_ANOTHER_TUNER)
    code, report = checked(f"tuned.py:right {SMALL}")
    assert (code, report["verdict"]) == (0, "match")
    assert any(
        "it ran with the first configuration that fits: " in note for note in report["notes"]
    )
