"""Lowers interpreted launches to TTIR; in a last process."""

import functools
import gc
import linecache
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.code_generator import CodeGenerator, UnsupportedLanguageConstruct
from triton.compiler.compiler import make_backend
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature

from ...model.case import ARCHITECTURES, DEFAULT_ARCHITECTURE
from ...model.report import CompileError
from ...processes.ended import EndedLine
from . import architecture, target_of
from .interpreter.language_patches import shipped_language
from .launches import KernelCall
from .raised import compiler_place

# A kernel that compiles for one of them is not at fault, where nobody said which it is for.
_USUAL = (DEFAULT_ARCHITECTURE, "sm_80", "sm_100", "gfx942")
# Wrong whatever the sizes of a case are: a name, or a statement that the language does not have.
_OF_TEXT = (NameError, UnsupportedLanguageConstruct)
# Wrong only where a kernel stays so with larger blocks.
_OF_TYPES = (TypeError, AttributeError, ValueError, AssertionError, NotImplementedError)
# The least that a dot multiplies, and how far blocks are made larger.
_LEAST, _LARGER = 16, (1, 4)
_Refused = tuple[BaseException, EndedLine | None, str]
_TRITON = Path(triton.__file__).parent
_FRONT_END = (str(_TRITON / "compiler"), str(_TRITON / "language"))
# A file that asks whether it is interpreted defines other names when it is compiled.
_ASKS = re.compile(r"TRITON_INTERPRET|runtime\.interpret\b")


def compile_errors(calls: Sequence[KernelCall]) -> list[CompileError | None]:
    """What keeps each from being compiled at any size, for the GPU asked for, else any."""
    gc.disable()  # what it would go through is shared with the process before the fork
    _restore_language()
    return list(map(_error_of, calls))


def _error_of(call: KernelCall) -> CompileError | None:
    asked = architecture()
    first, *others = [target_of(ARCHITECTURES[name]) for name in ([asked] if asked else _USUAL)]
    root, line, words = _refused(call, first) or (None, None, "")
    if root is None or line is None or not _is_sure(root, line.file):
        return None
    tries = list(product([call], others))
    if not isinstance(root, _OF_TEXT):
        tries += product(_with_larger_blocks(call), [first])
    for again, target in tries:
        other = _refused(again, target)
        if other is None or (type(other[0]), other[1]) != (type(root), line):
            return None
    name = re.search(r"Cannot access global variable (\w+)", words)
    way_out = (
        f"make it a constant of the language: {name[1]} = tl.constexpr(...)" if name else ""
    )
    reason = re.split(r"[.!] ", " ".join(words.split()))[0].rstrip(".")
    about = dict(vars(line), kernel=call.name, way_out=way_out, arch=asked or "")
    return CompileError(**about, words=reason)


def _refused(call: KernelCall, target: GPUTarget) -> _Refused | None:
    try:
        kernel, backend = _compilable(call.kernel), make_backend(target)
        given = {name: _compilable(value) for name, value in call.given.items()}
        given["debug"] = False
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        options, *parts = kernel._pack_args(backend, given, *bind(**given))
        source, context = ASTSource(kernel, *parts), ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        functions = backend.get_codegen_implementation(options)
        source.make_ir(target, options, functions, backend.get_module_map(), context)
    except Exception as error:
        root: BaseException = error
        while (inner := root.__cause__ or root.__context__) is not None:
            root = inner
        return root, *(compiler_place(error) or (None, ""))
    return None


def _is_sure(root: BaseException, file: str) -> bool:
    is_known = isinstance(root, (*_OF_TEXT, *_OF_TYPES, CompilationError))
    is_of_sizes = isinstance(root, CompileTimeAssertionFailure)
    if is_of_sizes or not is_known or _ASKS.search("".join(linecache.getlines(file))):
        return False
    frames = traceback.extract_tb(root.__traceback__)
    return not frames or frames[-1].filename.startswith(_FRONT_END)


def _with_larger_blocks(call: KernelCall) -> Iterator[KernelCall]:
    for factor in _LARGER:
        larger = {}
        for name, size in call.constants.items():
            if type(size) is int and size > 1:
                larger[name] = max(_LEAST, factor * (1 << (size - 1).bit_length()))
        if larger.items() - call.given.items():
            yield replace(call, given={**call.given, **larger})


@functools.cache
def _restore_language() -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    for owner, attributes in shipped_language().items():
        for name, value in list(vars(owner).items()):
            if name not in attributes:
                delattr(owner, name)
            elif attributes[name] is not value and name not in ("__dict__", "__weakref__"):
                setattr(owner, name, attributes[name])
    for name, method in list(vars(tl.tensor).items()):
        for cell in getattr(method, "__closure__", None) or ():
            # Of the language, and a method as well.
            if type(cell.cell_contents) is InterpretedFunction:
                setattr(tl.tensor, name, _compilable(cell.cell_contents))
    generator: Any = CodeGenerator
    visit = generator.visit
    # The front end refuses a global that it does not know. Whatever a name means passes by its `visit`.
    interpreted: Any = InterpretedFunction
    interpreted.__triton_builtin__ = True
    generator.visit = lambda self, node: _compilable(visit(self, node))


@functools.cache
def _compiled_form(kernel: Any) -> JITFunction[Any]:
    kernel.fn.__defaults__ = tuple(map(_compilable, kernel.fn.__defaults__ or ())) or None
    return JITFunction(kernel.fn, **kernel.kwargs)


def _compilable(thing: Any) -> Any:
    if type(thing) is tl.constexpr and type(thing.value) is InterpretedFunction:
        return tl.constexpr(_compiled_form(thing.value))
    return _compiled_form(thing) if type(thing) is InterpretedFunction else thing
