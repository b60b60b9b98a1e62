"""Lowers launches of interpreted kernels to TTIR, and says which of them no compiler takes.

For a process that is to do nothing else afterwards: `restore_language` has no way back. Import this only once
TRITON_INTERPRET=1 is in the environment, since it imports triton.
"""

from __future__ import annotations

import gc
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.code_generator import UnsupportedLanguageConstruct
from triton.compiler.compiler import make_backend
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime.jit import create_function_from_signature

from ....model.architectures import ARCHITECTURES, DEFAULT
from ....model.report import CompileError
from ..kernel_call import KernelCall, Pointed
from ..raised import CompilerPlace, compiler_place
from ..stand_in import architecture
from .language import compilable, restore_language

# A kernel that compiles for one of them is not at fault, where nobody said which it is for.
_USUAL = (DEFAULT, "sm_80", "sm_100", "gfx942")
# Wrong whatever the sizes of a case are: a name, or a statement that the language does not have.
_OF_TEXT = (NameError, UnsupportedLanguageConstruct)
# Wrong only where a kernel stays so with larger blocks.
_OF_TYPES = (TypeError, AttributeError, ValueError, AssertionError, NotImplementedError, CompilationError)
# The least that a dot multiplies, and how far blocks are made larger.
_LEAST, _LARGER = 16, (1, 4)
_FRONT_END = tuple(str(Path(triton.__file__).parent / part) for part in ("compiler", "language"))
# A file that asks whether it is interpreted defines other names when it is compiled.
_ASKS = re.compile(r"TRITON_INTERPRET|runtime\.interpret\b")
_LONGEST = 200


def compile_errors(calls: Sequence[KernelCall]) -> list[CompileError | None]:
    """Of each launch, what keeps its kernel from being compiled at any size; None where nothing does.

    It is so for the architecture that was asked for, else for any GPU.

    Nothing is said where the front end does not even take a kernel of this tool's own: then it is not known here.
    """
    gc.disable()  # what it would go through is shared with the process before the fork
    restore_language()
    found = [_error_of(call) for call in calls]
    return found if not any(found) or _error_in(_own_call(), _targets()[0]) is None else [None] * len(calls)


def is_taken(call: KernelCall) -> bool:
    """Whether the front end takes a launch."""
    restore_language()
    return _error_in(call, _targets()[0]) is None


def _targets() -> list[GPUTarget]:
    asked = architecture()
    gpus = [ARCHITECTURES[name] for name in ([asked] if asked else _USUAL)]
    return [GPUTarget("hip" if one.gfx else "cuda", one.triton_arch, one.warp) for one in gpus]


@triton.jit
def _own_kernel(x_ptr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    places = x_ptr + tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(places)
    tl.store(places, tl.sum(tl.dot(x, x), 1)[:, None])


def _own_call() -> KernelCall:
    return KernelCall(_own_kernel, {"x_ptr": Pointed(torch.bfloat16), "SIZE": 16})


def _error_of(call: KernelCall) -> CompileError | None:
    """What is wrong with a kernel whatever the sizes and the GPU are; None where nothing is, or that is not sure."""
    first, *others = _targets()
    error = _error_in(call, first)
    place = None if error is None else compiler_place(error)
    if error is None or place is None or not _is_sure(error, place):
        return None
    sizes = () if isinstance(_root(error), _OF_TEXT) else _with_larger_blocks(call)
    for other, target in [*((call, target) for target in others), *((other, first) for other in sizes)]:
        again = _error_in(other, target)
        if again is None or not _is_same(error, again):
            return None
    return CompileError(
        kernel=call.kernel.fn.__name__, function=place.line.function, file=place.line.file, line=place.line.line,
        code=place.line.code, words=_first_sentence(place.words), way_out=_way_out(error),
        arch=architecture() or "",
    )  # fmt: skip


def _error_in(call: KernelCall, target: GPUTarget) -> BaseException | None:
    try:
        _lower(call, target)
    except Exception as error:
        return error
    return None


def _lower(call: KernelCall, target: GPUTarget) -> None:
    """Compiles a launch to TTIR as Triton's own `run` begins to."""
    kernel, backend = compilable(call.kernel), make_backend(target)
    given = {**{name: compilable(argument) for name, argument in call.given.items()}, "debug": False}
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, types, named = bind(**given)
    options, signature, constants, attributes = kernel._pack_args(backend, given, bound, types, named)
    source, context = ASTSource(kernel, signature, constants, attributes), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    source.make_ir(target, options, functions, backend.get_module_map(), context)


def _is_sure(error: BaseException, place: CompilerPlace) -> bool:
    """Whether an error is of the kernel's text or types, and not of what this process lacks or says otherwise."""
    root = _root(error)
    if isinstance(root, CompileTimeAssertionFailure) or not isinstance(root, (*_OF_TEXT, *_OF_TYPES)):
        return False
    if any(_ASKS.search(line) for line in linecache.getlines(place.line.file)):
        return False
    trace = list(_frames(root))
    return not trace or trace[-1].startswith(_FRONT_END)


def _is_same(error: BaseException, other: BaseException) -> bool:
    """Whether two errors are of one line and kind; their words tell sizes."""
    places = [compiler_place(one) for one in (error, other)]
    lines = [place and place.line for place in places]
    return lines[0] == lines[1] and type(_root(error)) is type(_root(other))


def _root(error: BaseException) -> BaseException:
    """What was raised first: the front end wraps it once for each function that is called."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def _frames(error: BaseException) -> Iterator[str]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename
        trace = trace.tb_next


def _with_larger_blocks(call: KernelCall) -> Iterator[KernelCall]:
    sizes = {name: one for name, one in call.constants.items() if type(one) is int and one > 1}
    for factor in _LARGER:
        larger = {name: max(_LEAST, factor * (1 << (size - 1).bit_length())) for name, size in sizes.items()}
        if larger != sizes:
            yield replace(call, given={**call.given, **larger})


def _first_sentence(words: str) -> str:
    """The sentence that matters of what the front end said, in one line."""
    sentence = re.split(r"[.!] ", " ".join(words.split()))[0].rstrip(".")
    return sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}..."


def _way_out(error: BaseException) -> str:
    """What to change, where that is known: a global has to be a constant of the language."""
    found = re.search(r"Cannot access global variable (\w+)", str(_root(error)))
    return f"make it a constant of the language: {found[1]} = tl.constexpr(...)" if found else ""
