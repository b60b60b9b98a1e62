"""Lowers launches of interpreted kernels to TTIR, without a GPU, and says which of them no compiler takes.

For a process that is to do nothing else afterwards: `restore_language` has no way back. Import this only once
TRITON_INTERPRET=1 is in the environment, since it imports triton.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import linecache
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.code_generator import UnsupportedLanguageConstruct
from triton.compiler.compiler import make_backend
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature

from ...model.architectures import ARCHITECTURES, DEFAULT
from ...model.report import CompileError
from ...processes.ended import EndedLine
from ...source.kernel_file import inside
from ...source.text import python_file
from .interpreter.language_patches import shipped_language
from .launches import KernelCall
from .raised import compiler_place
from .stand_in import architecture

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


def compile_errors(calls: Sequence[KernelCall]) -> list[CompileError | None]:
    """Of each launch, what keeps its kernel from being compiled at any size; None where nothing does.

    It is so for the architecture that was asked for, else for any GPU.
    """
    gc.disable()  # what it would go through is shared with the process before the fork
    restore_language()
    return [_error_of(call) for call in calls]


def is_taken(call: KernelCall) -> bool:
    """Whether the front end takes a launch."""
    restore_language()
    return _error_in(call, _targets()[0]) is None


def _targets() -> list[GPUTarget]:
    asked = architecture()
    gpus = [ARCHITECTURES[name] for name in ([asked] if asked else _USUAL)]
    return [GPUTarget("hip" if gpu.gfx else "cuda", gpu.triton_arch, gpu.warp) for gpu in gpus]


def _error_of(call: KernelCall) -> CompileError | None:
    """What is wrong with a kernel whatever the sizes and the GPU are; None where nothing is, or that is not sure."""
    first, *others = _targets()
    error = _error_in(call, first)
    found = None if error is None else compiler_place(error)
    if error is None or found is None or not _is_sure(error, found[0].file):
        return None
    root, (line, words) = _root(error), found
    tries = [(call, target) for target in others]
    if not isinstance(root, _OF_TEXT):
        tries += [(larger, first) for larger in _with_larger_blocks(call)]
    for again, target in tries:
        other = _error_in(again, target)
        there = None if other is None else compiler_place(other)
        # Of one line and kind: the words tell sizes.
        if other is None or there is None or there[0] != line or type(_root(other)) is not type(root):
            return None
    return CompileError(
        kernel=call.name,
        function=line.function,
        file=line.file,
        line=line.line,
        code=line.code,
        words=re.split(r"[.!] ", " ".join(words.split()))[0].rstrip("."),  # the sentence that matters
        way_out=_way_out(line, str(root)),
        arch=architecture() or "",
    )


def _way_out(line: EndedLine, message: str) -> str:
    """What to change of a name that Python finds and a compiler does not."""
    if name := re.search(r"Cannot access global variable (\w+)", message):
        return f"make it a constant of the language: {name[1]} = tl.constexpr(...)"
    name = re.search(r"(\w+) is not defined", message)
    if name and _ends_with_its_loop(name[1], line):
        return f"a loop may run no turn, so that what is first assigned in it ends with it: assign {name[1]} before it"
    return ""


def _ends_with_its_loop(name: str, line: EndedLine) -> bool:
    """Whether the function of a line assigns a name inside of loops and nowhere else."""

    def assigned(roots: Sequence[ast.AST]) -> set[int]:
        names = [each for root in roots for each in inside(root, ast.Name)]
        return {id(each) for each in names if each.id == name and isinstance(each.ctx, ast.Store)}

    for function in python_file(line.file).functions:
        if function.name == line.function:
            loops = [*inside(function, ast.For), *inside(function, ast.While)]
            return bool(loops) and assigned([function]) == assigned(loops) != set()
    return False


def _error_in(call: KernelCall, target: GPUTarget) -> Exception | None:
    """What comes of compiling a launch to TTIR as Triton's own `run` begins to."""
    try:
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
    except Exception as error:
        return error
    return None


def _is_sure(error: BaseException, file: str) -> bool:
    """Whether an error is of the kernel's text or types, and not of what this process lacks or says otherwise."""
    root = _root(error)
    if isinstance(root, CompileTimeAssertionFailure) or not isinstance(root, (*_OF_TEXT, *_OF_TYPES)):
        return False
    if any(_ASKS.search(line) for line in linecache.getlines(file)):
        return False
    frames = list(traceback.walk_tb(root.__traceback__))
    return not frames or frames[-1][0].f_code.co_filename.startswith(_FRONT_END)


def _root(error: BaseException) -> BaseException:
    """What was raised first: the front end wraps it once for each function that is called."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def _with_larger_blocks(call: KernelCall) -> Iterator[KernelCall]:
    sizes = {name: value for name, value in call.constants.items() if type(value) is int and value > 1}
    for factor in _LARGER:
        larger = {name: max(_LEAST, factor * (1 << (size - 1).bit_length())) for name, size in sizes.items()}
        if larger != sizes:
            yield replace(call, given={**call.given, **larger})


@functools.cache  # a second time would undo what `_reach` has put into it
def restore_language() -> None:
    """Makes the language of this process the compiler's: no kernel can be interpreted any more."""
    os.environ.pop("TRITON_INTERPRET", None)
    for owner, attributes in shipped_language().items():
        for name, value in list(vars(owner).items()):
            if name not in attributes:
                delattr(owner, name)
            elif attributes[name] is not value and name not in ("__dict__", "__weakref__"):
                setattr(owner, name, attributes[name])


_MADE: dict[int, tuple[Any, Any]] = {}
"""By the id of each interpreted function: it, and the compiler's form of it."""


def compilable(thing: Any) -> Any:
    """The compiler's form of a Triton function, with all that it reaches made so too; anything else as it is."""
    if type(thing) is tl.constexpr and type(thing.value) is InterpretedFunction:
        return tl.constexpr(compilable(thing.value))
    if type(thing) is not InterpretedFunction:
        return thing
    if id(thing) not in _MADE:
        thing.fn.__defaults__ = tuple(map(compilable, thing.fn.__defaults__ or ())) or None
        # Noted before what it reaches, which may be itself.
        _MADE[id(thing)] = thing, JITFunction(thing.fn, **thing.kwargs)
        _reach(thing.fn)
    return _MADE[id(thing)][1]


def _reach(function: Any) -> None:
    """Replaces what a function's names may mean: in its file, in modules that it names, and as methods of tensors."""
    names, spaces = set(_names_in(function.__code__)), [function.__globals__]
    for space in spaces:
        for name in names & space.keys():
            if type(value := space[name]) is ModuleType and vars(value) not in spaces:
                spaces.append(vars(value))
            else:
                space[name] = compilable(value)
    for name in names & vars(tl.tensor).keys():  # a function of the language that is a method as well
        for cell in _cells_with_functions(vars(tl.tensor)[name]):
            setattr(tl.tensor, name, compilable(cell.cell_contents))
    for cell in _cells_with_functions(function):
        cell.cell_contents = compilable(cell.cell_contents)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _cells_with_functions(function: Any) -> Iterator[Any]:
    """The variables of a closure that hold Triton functions."""
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            if type(cell.cell_contents) in (InterpretedFunction, JITFunction):
                yield cell
