"""Compiles variants of a file of kernels for a Hopper GPU, which needs none.

Run with the file's name and the variants' numbers, without Triton's interpreter.
"""

from __future__ import annotations

import sys

from triton import compile as triton_compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradprobe.kernels.triton import flash, lazy

KERNELS = {
    "lazy": (lazy.lazy_forward_kernel, lazy.lazy_preprocess_kernel, lazy.lazy_dq_kernel, lazy.lazy_dkdv_kernel),
    "flash": (
        flash.flash_forward_kernel, flash.flash_preprocess_kernel, flash.flash_dq_kernel, flash.flash_dkdv_kernel,
    ),
}  # fmt: skip
VARIANTS = {
    "lazy": [
        ("fp32", {"bias", "seqlens", "export"}, "ieee"),
        ("fp32", {"bias"}, "tf32"),
        ("fp16", {"seqlens"}, "ieee"),
        ("bf16", set(), "ieee"),
    ],
    "flash": [
        (
            "fp32",
            {"bias", "alibi", "mask", "sinks", "seqlens", "softcap", "bottom_right", "export"},
            "ieee",
        ),
        ("fp32", {"bias", "packed", "bottom_right"}, "tf32"),
        ("fp16", {"alibi", "mask", "sinks", "packed"}, "ieee"),
        ("bf16", {"softcap", "seqlens", "export"}, "ieee"),
        ("bf16", {"ones"}, "ieee"),
    ],
}
# Integers of which a launch with the value 1 makes constants.
ONES = ("n_heads", "group", "n_tiles", "head_dim", "head_dim_v")
IN_DTYPE = {"q", "k", "v", "do", "o", "dq", "dk", "dv"}
POINTERS = {"seqlens": "*i32", "cu_q": "*i32", "cu_k": "*i32", "mask": "*i1"}
SCALARS = {"scale": "fp32", "softcap": "fp32"} | dict.fromkeys(
    ("n_ctx", "n_ctx_m", "n_ctx_n", "left", "right"), "i64"
)
# What is None in a launch without an option.
ABSENT = {
    "bias": "bias_ptr dbias_ptr", "alibi": "alibi_ptr", "mask": "mask_ptr", "sinks": "sinks_ptr dsink_ptr",
    "seqlens": "seqlens_ptr", "packed": "cu_q_ptr cu_k_ptr", "export": "p_ptr dp_ptr ds_ptr",
}  # fmt: skip


def source(kernel, dtype: str, present: set[str], dots: str) -> ASTSource:
    """A kernel's source with the types and constants of a launch."""
    meta = {
        name: name.removeprefix("HAS_").lower() in present
        for name in kernel.arg_names
        if name.isupper()
    }
    meta |= {"DOTS": dots, "BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_D": 16, "BLOCK_DV": 32}
    absent = {
        name
        for option, names in ABSENT.items()
        if option not in present
        for name in names.split()
    }
    constants = {
        name: meta.get(name) for name in kernel.arg_names if name in meta or name in absent
    }
    if "ones" in present:
        constants |= {
            name: 1 for name in kernel.arg_names if name in ONES or name.startswith("stride_")
        }
    types = {
        name: "constexpr" if name in constants else type_of(name, dtype)
        for name in kernel.arg_names
    }
    return ASTSource(kernel, types, constexprs=constants)


def type_of(name: str, dtype: str) -> str:
    stem = name.removesuffix("_ptr")
    if stem != name:
        return POINTERS.get(stem, f"*{dtype}" if stem in IN_DTYPE else "*fp32")
    return SCALARS.get(name, "i32")


def main(family: str, *numbers: str) -> None:
    for kernel in KERNELS[family]:
        for dtype, present, dots in (VARIANTS[family][int(number)] for number in numbers):
            compiled = triton_compile(
                source(kernel, dtype, present, dots), target=GPUTarget("cuda", 90, 32)
            )
            print(kernel.__name__, dtype, dots, len(compiled.asm["cubin"]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
