from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gradprobe.frontends import Launches
from gradprobe.frontends.triton.launches import recorded_launches
from gradprobe.model.case import Case
from gradprobe.probing.experiment import Experiment, coarser_dots, dots_of, dots_sentence
from gradprobe.runtime.arithmetic import Dots, in_ttir, matmuls_watched, of_cuda, of_triton
from gradprobe.targets.find import find_target

ROOT = Path(__file__).parents[2]
TTIR = """
#loc = loc("/tmp/kernel.py":27:0)
module {
  tt.func public @k(%x_ptr: !tt.ptr<f32> loc("x_ptr"(#loc))) {
    %s = tt.dot %q, %k, %0, inputPrecision = tf32x3 : tensor<16x8xf32> * tensor<8x4xf32> -> tensor<16x4xf32> loc(#loc31)
    %dq = tt.dot %ds, %k, %dq_1 : tensor<16x16xf32> * tensor<16x8xf32> -> tensor<16x8xf32> loc(#loc29)
    %v = tt.dot %p, %o, %1, inputPrecision = tf32 : tensor<4x4xbf16> * tensor<4x8xbf16> -> tensor<4x8xf32> loc(#loc15)
  } loc(#loc)
} loc(#loc)
#loc10 = loc("/tmp/kernel.py":23:21)
#loc11 = loc("/tmp/kernel.py":30:22)
#loc12 = loc("/tmp/kernel.py":32:22)
#loc15 = loc("/tmp/kernel.py":34:45)
#loc29 = loc("dq"(#loc12))
#loc30 = loc("s"(#loc10))
#loc31 = loc(callsite(#loc30 at #loc11))
"""


def test_each_way_of_a_compiled_kernel_is_read_with_its_lines_and_16_bit_dots_do_not_count():
    assert list(in_ttir("k", TTIR)) == [
        Dots("tf32x3", "k", "/tmp/kernel.py", (23,)),
        Dots("ieee", "k", "/tmp/kernel.py", (32,)),
    ]
    assert [one.way for one in in_ttir("k", TTIR.replace("tf32x3", "fp4x9"))] == ["tf32", "ieee"]
    named = SimpleNamespace(name="copy_kernel")
    without = SimpleNamespace(metadata=named, asm={"ttir": "module {}"})
    assert list(of_triton([without])) == [Dots("ieee", "copy_kernel")]


def test_what_a_launch_was_compiled_to_is_kept(monkeypatch):
    def kernel(x):
        pass

    class Compiled:
        metadata, asm = SimpleNamespace(name="kernel"), {"ttir": TTIR}

    jit, made = pytest.importorskip("triton.runtime.jit"), Compiled()
    monkeypatch.setattr(jit.JITFunction, "run", lambda *_, **__: made)
    record = Launches()
    with recorded_launches(record):
        for _ in range(2):
            jit.JITFunction(kernel)[(1,)](torch.zeros(1))
    assert (len(record.started), record.compiled) == (2, {made})
    assert next(of_triton(record.compiled)).way == "tf32x3"


def test_cuda_kernels_are_ieee_unless_their_source_names_tf32():
    def way_of(text):
        source = SimpleNamespace(text=text, included=(), path="k.cu")
        return [one.way for one in of_cuda([SimpleNamespace(source=source, name="k")])]

    assert way_of("// no tf32 here\n/* nor\ntf32 */ __global__ void k() {}") == ["ieee"]
    assert way_of('asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32");') == ["tf32"]


def test_a_setting_of_torch_counts_even_where_a_target_takes_it_back():
    for set_it in (
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        lambda: torch.set_float32_matmul_precision("high"),
    ):
        before, found = torch.backends.cuda.matmul.fp32_precision, []
        with matmuls_watched(found):
            set_it()
            torch.backends.cuda.matmul.fp32_precision = before
        assert "tf32" in {one.way for one in found}
        found.clear()
        with matmuls_watched(found):
            pass
        assert {one.way for one in found} == {"ieee"}


FORWARD = Dots("ieee", "forward_kernel", "k.py", (9,))
BACKWARD = Dots("tf32", "dq_kernel", "/x/k.py", (81, 90))
MATMUL = Dots("ieee", "torch.backends.cuda.matmul")


def said(*seen, target="sdpa", is_compiled=True, **options):
    case = Case(**{"family": "softmax", "device": "cuda", **options})
    backends = frozenset({"triton"} if is_compiled else ())
    of = Experiment(case, find_target(target), None, {}, dots=seen, backends=backends)
    return dots_of(of), dots_sentence(of), [one.by for one in coarser_dots(of)]


def test_what_is_judged_is_declared_else_read_else_assumed_and_said_with_its_reason():
    read, judged = (
        "tf32 in dq_kernel (k.py:81, 90); ieee in forward_kernel",
        "dots are judged as",
    )
    came = ("tf32", f"{judged} tf32, as was read: {read}", [])
    assert said(FORWARD, BACKWARD, MATMUL) == came
    came = ("ieee", f"{judged} ieee, as was read: ieee in forward_kernel", [])
    assert said(FORWARD, MATMUL) == came
    way, words, coarser = said(FORWARD, BACKWARD, dots="ieee")
    assert (way, coarser) == ("ieee", ["dq_kernel"])
    assert words == f"dots are judged as ieee, as --dots says; read: {read}"
    way, words, coarser = said(FORWARD, BACKWARD, target="flash")
    assert (way, coarser) == ("ieee", ["dq_kernel"])
    assert "which the target is told" in words
    way, words, _ = said(MATMUL)
    assert way == "tf32"
    assert "nothing was read" in words
    came = ("ieee", f"{judged} ieee, as was read: ieee in torch.backends.cuda.matmul")
    assert said(MATMUL, is_compiled=False)[:2] == came
    assert said(FORWARD, Dots("tf32", "torch.backends.cuda.matmul"))[0] == "tf32"
