"""What costs a GPU its process costs one layout, or one case: an illegal access, a misaligned one, an assertion."""

from pathlib import Path

import pytest

from gradprobe.commands.suite.checking import Setting
from gradprobe.commands.suite.outcome import code_of_report
from gradprobe.commands.survey import survey
from gradprobe.inputs.history import CheckRequest
from gradprobe.processes import run_each
from gradprobe.render.screen import rendered
from gradprobe.render.terminal import Terminal
from tests.commands.strides.crashing import write

pytestmark = pytest.mark.gpu

OPTIONS = {"seqlen": 20, "head_dim": 8, "dtype": "float16", "device": "cuda"}
ILLEGAL, MISALIGNED = "an illegal memory access was encountered", "misaligned address"
KERNEL = """
extern "C" __global__ void store_far(float* x, long long far) { x[far] = 1.0f; }
extern "C" __global__ void load_four(float* x, long long at) {
    float4 v = *(float4*)(x + at);
    x[0] = v.x + v.y + v.z + v.w;
}
extern "C" __global__ void stop(float* x, long long at) { asm("trap;"); }
"""


def surveyed(word, *, fast):
    request = CheckRequest(word, None, None, OPTIONS)
    given, setting = frozenset(OPTIONS), Setting(timeout=200)
    *_, report = survey(request, "again", given=given, fast=fast, setting=setting)
    look = Terminal(100, None, utf8=True, details=True)
    print("\n".join(line.plain for line in rendered(report, look)))
    # Those that are warnings too.
    return report, {run.layout: run for run in report.runs if run.verdict == "error"}


class Losing:
    """Called with a word it loses the device in that way, and returns as if nothing had happened."""

    def __init__(self, folder):
        import torch

        from gradprobe.cuda import load

        self._x = torch.zeros(1024, device="cuda")
        path = Path(folder) / "losing.cu"
        path.write_text(KERNEL)
        self._kernels = load(path)

    def __call__(self, how):
        import contextlib

        import torch

        with contextlib.suppress(Exception):
            if how == "assertion":
                print(self._x[torch.full((4,), 5000, device="cuda")].sum().item())
            elif how != "nothing":
                kernel = self._kernels[how]
                kernel(1, 1, 0, self._x, 1 << 40 if how == "store_far" else 1)
                torch.cuda.synchronize()
        with contextlib.suppress(Exception):  # leaves the device as it was
            self._kernels.load_four(1, 4096, 0, self._x, 0)
        return how


def test_the_device_says_that_it_is_lost_in_every_form_and_only_then(tmp_path):
    ways = ["nothing", "store_far", "nothing", "load_four", "assertion", "stop", "nothing"]
    losing = "tests.gpu.test_crashes_on_gpu:Losing"
    ends = list(run_each(losing, str(tmp_path), ways, timeout=120))
    print([(ended.item, ended.crash and ended.crash.words) for ended in ends])
    assert [ended.crash.kind if ended.crash else ended.result for ended in ends] == [
        "nothing", "DeviceLost", "nothing", "DeviceLost", "DeviceLost", "DeviceLost", "nothing",
    ]  # fmt: skip
    assert ILLEGAL in ends[1].crash.words
    assert MISALIGNED in ends[3].crash.words
    assert "device-side assert" in ends[4].crash.words


def test_offsets_of_32_bits_cost_the_layouts_beyond_2_to_the_31_alone(tmp_path):
    report, crashed = surveyed(write(tmp_path, "narrow"), fast=False)
    # Where another tensor happens to lie there, the wrapped offset reads that.
    wrong = {run.layout for run in report.runs if run.verdict == "mismatch"}
    assert "do=huge" in crashed
    assert {*crashed, *wrong} <= {"do=huge", "huge"}
    for run in crashed.values():
        assert ILLEGAL in run.error
        (stray,) = run.memory
        told = stray.kind, stray.tensor, stray.kernel
        assert told == ("outside", "do", "narrow_copy_kernel")
        assert stray.code.startswith("x = tl.load(x_ptr + b * stride_b + h * stride_h")
    right = [run for run in report.runs if run.verdict in ("match", "skipped")]
    assert len(right) == len(report.runs) - len({*crashed, *wrong})
    assert [warned.kind for warned in report.warnings] == ["huge"]
    assert (report.verdict, code_of_report(report)) == ("match", 0)


def test_a_misaligned_access_costs_the_layouts_off_every_alignment_alone(tmp_path):
    report, crashed = surveyed(write(tmp_path, "dense_pairs"), fast=True)
    assert set(crashed) == {"offset"}
    assert MISALIGNED in crashed["offset"].error
    (stray,) = crashed["offset"].memory
    told = stray.kind, stray.tensor, stray.kernel
    assert told == ("misaligned", "do", "copy_by_pairs_kernel")
    assert stray.code.startswith("x = tl.load(from_row[:, None]")
    assert {run.verdict for run in report.runs} == {"match", "error", "skipped"}
