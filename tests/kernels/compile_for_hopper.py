"""Compiles the lazy kernels for a Hopper GPU, which needs none: run as a script, without Triton's interpreter."""

from __future__ import annotations

from triton import compile as triton_compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradprobe.kernels.triton import lazy

KERNELS = (
    lazy.lazy_forward_kernel, lazy.lazy_preprocess_kernel, lazy.lazy_dq_kernel, lazy.lazy_dkdv_kernel,
)  # fmt: skip
IN_DTYPE = {"q", "k", "v", "do", "o", "dq", "dk", "dv"}
OPTIONAL = {"bias": "bias_ptr dbias_ptr", "seqlens": "seqlens_ptr", "export": "p_ptr dp_ptr ds_ptr"}


def source(kernel, dtype: str, present: set[str], dots: str) -> ASTSource:
    """A kernel's source with the types and constants of a launch."""
    meta = {
        "HAS_BIAS": "bias" in present, "HAS_SEQLENS": "seqlens" in present, "EXPORT": "export" in present,
        "DOTS": dots, "BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_D": 32,
    }  # fmt: skip
    absent = {name for option, names in OPTIONAL.items() if option not in present for name in names.split()}
    constants = {name: meta.get(name) for name in kernel.arg_names if name in meta or name in absent}
    types = {name: "constexpr" if name in constants else type_of(name, dtype) for name in kernel.arg_names}
    return ASTSource(kernel, types, constexprs=constants)


def type_of(name: str, dtype: str) -> str:
    stem = name.removesuffix("_ptr")
    if stem != name:
        return "*i32" if stem == "seqlens" else f"*{dtype}" if stem in IN_DTYPE else "*fp32"
    return {"scale": "fp32", "n_ctx": "i64"}.get(name, "i32")


def main() -> None:
    for kernel in KERNELS:
        for dtype, present, dots in (
            ("fp32", {"bias", "seqlens", "export"}, "ieee"),
            ("fp32", {"bias"}, "tf32"),
            ("fp16", {"seqlens"}, "ieee"),
            ("bf16", set(), "ieee"),
        ):
            compiled = triton_compile(source(kernel, dtype, present, dots), target=GPUTarget("cuda", 90, 32))
            print(kernel.__name__, dtype, dots, len(compiled.asm["cubin"]))


if __name__ == "__main__":
    main()
