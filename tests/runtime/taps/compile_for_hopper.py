"""Compiles kernels with taps for a Hopper GPU, which needs none: run with the dtypes of those that are written here.

Without Triton's interpreter.
"""

from __future__ import annotations

import sys

from triton import compile as triton_compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradprobe.kernels.triton import lazy
from gradprobe.runtime.taps import parse_tap
from gradprobe.runtime.taps.rewrite import outermost, rewrite, sight
from gradprobe.runtime.taps.sentences import raised
from gradprobe.source.triton_source import call_tree
from tests.kernels.compile_for_hopper import source
from tests.runtime.taps import written

LAZY = (
    (lazy.lazy_preprocess_kernel, ("delta=delta[b,h,offs_m]",)),
    (lazy.lazy_dq_kernel, ("P=p[b,h,offs_m,offs_n]", "dS=ds[b,h,offs_m,offs_n]", "dQ=dq[b,h,offs_m,offs_d]*scale")),
    (lazy.lazy_dkdv_kernel, ("P=p[b,h,offs_m,offs_n].T", "dS=ds[b,h,offs_m,offs_n].T", "dV=dv[b,h,offs_n,offs_d]")),
)
WRONG = (
    (lazy.lazy_dq_kernel, "dS=ds[b,h,offs_m,offs_m]"),
    (lazy.lazy_dq_kernel, "dS=ds[b,h,offs_m,start_n]"),
    (lazy.lazy_dq_kernel, "dS=ds[b,h,offs_m,valid]"),
    (written.half_named_kernel, "delta=p[0,0,offs_m]"),
)
HEAD = "bhid // H, bhid % H"
FUSED = (f"dP=dpT[{HEAD},offs_m,offs_n].T", f"dS=ds[{HEAD},offs_m,offs_n]", f"dQ=dq[{HEAD},offs_m,offs_k]")
DECORATED = ("P=p[off_b,off_h,offs_qm,offs_n]", "delta=Di[off_b,off_h,offs_qm]", "dQ=dq[off_b,off_h,offs_qm,offs_d]")


def tapped(kernel, words):
    """The kernel with taps, as a launch would get it."""
    taps = [parse_tap(word) for word in words]
    tree = call_tree(kernel)
    sightings = {}
    for number, tap in enumerate(taps):
        found = [sighting for function in tree if (sighting := sight(tree, function, tap)) and sighting.places]
        (sightings[number],) = outermost(found)
    return rewrite(tree, sightings, taps).jit


def tap_types(types: dict[str, str]) -> dict[str, str]:
    return types | {
        name: "*fp32" if name.endswith("ptr") else "i32" for name in types if name.startswith("gradprobe_tap")
    }


def lazy_source(kernel, dtype: str) -> ASTSource:
    made = source(kernel, dtype, {"seqlens"}, "ieee")
    made.signature.update(tap_types(made.signature))
    return made


def written_source(kernel, dtype: str, constants: dict) -> ASTSource:
    tensors = {"Q", "K", "V", "DO", "DQ", "DK", "DV"}
    types = {
        name: "constexpr" if name in constants else f"*{dtype}" if name in tensors
        else "*fp32" if name in ("LSE", "D", "Delta") else "fp32" if name.endswith("scale") else "i32"
        for name in kernel.arg_names
    }  # fmt: skip
    return ASTSource(kernel, tap_types(types), constexprs=constants)


def sources(dtypes: list[str]):
    """Each kernel with taps and without, ready to compile."""
    for kernel, words in LAZY:
        yield lazy_source(tapped(kernel, words), "fp16"), lazy_source(kernel, "fp16")
    blocks = {"BLOCK_M": 16, "BLOCK_N": 32, "CAUSAL": True}
    for dtype in dtypes:
        for kernel, words, more in (
            (written.fused_backward_kernel, FUSED, {"HEAD_DIM": 32}),
            (written.decorated_dq_kernel.fn.fn, DECORATED, {"EVEN_N": False, "BLOCK_D": 32}),
        ):
            yield tuple(written_source(each, dtype, blocks | more) for each in (tapped(kernel, words), kernel))


def main(*dtypes: str) -> None:
    target = GPUTarget("cuda", 90, 32)
    for pair in sources(list(dtypes)):
        compiled = [triton_compile(made, target=target) for made in pair]
        stores = [each.asm["ptx"].count("st.global") for each in compiled]
        print(pair[0].fn.__name__, *stores, len(compiled[0].asm["cubin"]))
    for kernel, word in WRONG:
        try:
            made = tapped(kernel, [word])
            is_lazy = kernel is lazy.lazy_dq_kernel
            made = lazy_source(made, "fp16") if is_lazy else written_source(made, "fp32", {"FLAG": False})
            triton_compile(made, target=target)
        except Exception as error:
            tap = parse_tap(word)
            (sighting,) = outermost([found for each in call_tree(kernel) if (found := sight([each], each, tap))])
            print("REFUSED", raised(error, [tap], {0: sighting}))


if __name__ == "__main__":
    main(*sys.argv[1:])
