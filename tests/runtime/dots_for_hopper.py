"""Prints Triton's intermediate representation of kernels compiled for a Hopper GPU, which needs none, as JSON by name.

Without Triton's interpreter.
"""

from __future__ import annotations

import json
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from gradprobe.kernels.triton import lazy
from tests.kernels.compile_for_hopper import source


@triton.jit
def product(a, b, WAY: tl.constexpr):
    return tl.dot(a, b, input_precision=WAY)


@triton.jit
def two_ways_kernel(x_ptr, n, WAY: tl.constexpr):
    place = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + place)
    x = product(x, x, WAY)
    for _ in range(n):
        x = tl.dot(x, x, input_precision="ieee")
    half = x.to(tl.float16)
    tl.store(x_ptr + place, x + tl.dot(half, half))


def ttir(made: ASTSource) -> str:
    """What the compiler makes of a kernel before it chooses anything for a GPU."""
    from triton._C.libtriton import ir

    target = GPUTarget("cuda", 90, 32)
    backend, context = make_backend(target), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options(made.parse_options())
    module = made.make_ir(
        target,
        options,
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    stages: dict = {}
    backend.add_stages(stages, options, made.language)
    return str(stages["ttir"](module, {}))


def main() -> None:
    found = {
        way: ttir(source(lazy.lazy_dq_kernel, "fp32", set(), way)) for way in ("ieee", "tf32")
    }
    found["fp16"] = ttir(source(lazy.lazy_dq_kernel, "fp16", set(), "tf32"))
    types = {"x_ptr": "*fp32", "n": "i32", "WAY": "constexpr"}
    found["two"] = ttir(ASTSource(two_ways_kernel, types, constexprs={"WAY": "tf32x3"}))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
