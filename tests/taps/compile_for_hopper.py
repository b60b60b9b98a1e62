"""Compiles kernels with taps for a Hopper GPU, which needs none: run as a script, without Triton's interpreter."""

from __future__ import annotations

from triton import compile as triton_compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradprobe.kernels.triton import lazy
from gradprobe.taps import parse_tap
from gradprobe.taps.functions import call_tree
from gradprobe.taps.rewrite import outermost, rewrite, sight
from tests.kernels.compile_for_hopper import source
from tests.taps import written

LAZY = (
    (lazy.lazy_preprocess_kernel, ("delta=delta[b,h,offs_m]",)),
    (lazy.lazy_dq_kernel, ("P=p[b,h,offs_m,offs_n]", "dS=ds[b,h,offs_m,offs_n]", "dQ=dq[b,h,offs_m,offs_d]*scale")),
    (lazy.lazy_dkdv_kernel, ("P=p[b,h,offs_m,offs_n].T", "dS=ds[b,h,offs_m,offs_n].T", "dV=dv[b,h,offs_n,offs_d]")),
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
    made = source(kernel, dtype, {"bias", "seqlens"}, "ieee")
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


def main() -> None:
    blocks = {"BLOCK_M": 16, "BLOCK_N": 32, "CAUSAL": True}
    sources = [lazy_source(tapped(kernel, words), "fp16") for kernel, words in LAZY]
    for dtype in ("fp32", "bf16"):
        fused = tapped(written.fused_backward_kernel, FUSED)
        decorated = tapped(written.decorated_dq_kernel.fn.fn, DECORATED)
        sources += [
            written_source(fused, dtype, blocks | {"HEAD_DIM": 32}),
            written_source(decorated, dtype, blocks | {"EVEN_N": False, "BLOCK_D": 32}),
        ]
    for made in sources:
        compiled = triton_compile(made, target=GPUTarget("cuda", 90, 32))
        print(made.fn.__name__, compiled.asm["ptx"].count("st.global"), len(compiled.asm["cubin"]))


if __name__ == "__main__":
    main()
