"""What Python code does: goals that it comes to, and values."""

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
import torch

from ...inputs.memory import Array
from ...model.report import CauseLine
from ...source.kernel_file import KernelFile
from ...source.reach import CALLER, FLAG, SEVERAL, SIDE, STATEMENT, TURNS, Goal, Reach
from .. import plain_function


@contextmanager
def reached_goals(file: str, functions: Sequence[Reach]) -> Iterator[set[Goal]]:
    reached, before = set[Goal](), sys.gettrace()
    by_name = {each.function.name: each for each in functions}

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        reach = by_name.get(frame.f_code.co_name)
        if reach is None or frame.f_code.co_filename != file:
            return None
        reached.update(_of_arguments(reach, frame))
        return _Call(reach, reached).stepped

    sys.settrace(called if functions else before)
    try:
        yield reached
    finally:
        sys.settrace(before)


def _of_arguments(reach: Reach, frame: FrameType) -> Iterator[Goal]:
    line, above, file = reach.function.lineno, frame.f_back, frame.f_code.co_filename
    for name in reach.flags:
        value = frame.f_locals.get(name)
        value = getattr(value, "value", value)
        if value is None or isinstance(value, (bool, int)):
            yield Goal(FLAG, line, int(bool(value)), name)
    while reach.callers and above is not None:
        name = above.f_code.co_name
        if above.f_code.co_filename == file and name in reach.callers:
            yield Goal(CALLER, line, name=name)
            return
        above = above.f_back


class _Call:
    def __init__(self, reach: Reach, reached: set[Goal]) -> None:
        self._reach, self._reached = reach, reached
        self._last: int | None = None
        self._turns: dict[int, int] = {}

    def stepped(self, frame: FrameType, event: str, argument: Any) -> Any:
        here = self._reach.statements.get(frame.f_lineno) if event == "line" else None
        is_loop = here in self._reach.loops
        if event == "return":
            self._leave(None)
        elif here is not None and (here != self._last or is_loop):
            self._leave(here)
            self._reached.add(Goal(STATEMENT, here))
            if is_loop:
                self._turns.setdefault(here, 0)
            self._last = here
        return self.stepped

    def _leave(self, here: int | None) -> None:
        reach, last = self._reach, self._last
        if last is not None and last in reach.branches:
            self._reached.add(Goal(SIDE, last, int(here in reach.branches[last])))
        for loop, turns in list(self._turns.items()):
            is_inside = here in reach.loops[loop]
            if last == loop and is_inside:
                self._turns[loop] += 1
            elif here != loop and not is_inside:
                self._reached.add(Goal(TURNS, loop, min(turns, SEVERAL)))
                del self._turns[loop]


# --- what its expressions and variables hold in one call, in order

_HOOK = "__gradprobe_value__"
_VALUES = (ast.BinOp, ast.Call, ast.Subscript, ast.Attribute, ast.UnaryOp)
# What is left as it is: its parts are no values of the function, or no place where a call may stand.
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_WHOLE = (*_COMPREHENSIONS, ast.Lambda, ast.JoinedStr, ast.pattern, ast.AsyncFunctionDef)
# An expression in a loop is looked at so often, and the last time.
_MOST, _LARGEST = 48, 1 << 20


@dataclass(frozen=True)
class Event:
    at: CauseLine
    array: Array
    dtype: str


@contextmanager
def followed(function: Callable[..., Any]) -> Iterator[list[Event]]:
    """While open, the functions of a function's file note their values."""
    found, counts, events = dict[tuple[int, int], Event](), Counter[int](), list[Event]()
    module = sys.modules.get(plain_function(function).__module__ or "")
    file = getattr(module, "__file__", None) or ""
    if module is None or not file.endswith(".py"):
        yield events
        return
    codes, places = _hooked(file, Path(file).read_text(encoding="utf-8"))

    def note(number: int, value: Any) -> Any:
        array = _as_array(value)
        if array is not None and array.ndim and array.size <= _LARGEST:
            counts[number] += 1
            key = number, min(counts[number], _MOST)
            found.pop(key, None)  # the latest in the place of the one before it
            dtype = str(value.dtype).removeprefix("torch.")
            found[key] = Event(places[number], array.copy(), dtype)
        return value

    with ExitStack() as stack:
        vars(module)[_HOOK] = note
        stack.callback(vars(module).pop, _HOOK)
        for plain in _functions(vars(module), module.__name__):
            before = plain.__code__
            code = codes.get((before.co_name, before.co_firstlineno))
            if code is not None and code.co_freevars == before.co_freevars:
                stack.callback(setattr, plain, "__code__", before)
                plain.__code__ = code
        stack.callback(lambda: events.extend(found.values()))
        yield events


def _functions(scope: Mapping[str, Any], module: str) -> Iterator[FunctionType]:
    for value in list(scope.values()):
        found = getattr(value, "__func__", value)
        plain = inspect.unwrap(found) if callable(found) else None
        is_own = getattr(plain, "__module__", None) == module
        if is_own and isinstance(plain, FunctionType):
            yield plain
        elif is_own and isinstance(plain, type):
            yield from _functions(vars(plain), module)


def _as_array(value: Any) -> Array | None:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(np.float64)
    is_tensor = isinstance(value, torch.Tensor) and value.is_floating_point()
    is_plain = is_tensor and not value.is_meta and value.layout is torch.strided
    return value.detach().cpu().double().numpy() if is_plain else None


@lru_cache(maxsize=4)
def _hooked(file: str, text: str) -> tuple[Mapping[tuple[str, int], CodeType], list[CauseLine]]:
    hooks = _Hooks(KernelFile(str(Path(file).resolve()), text))
    tree = ast.fix_missing_locations(hooks.visit(ast.parse(text)))
    waiting = [compile(tree, file, "exec", dont_inherit=True)]
    for code in waiting:
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return {(code.co_name, code.co_firstlineno): code for code in waiting}, hooks.places


class _Hooks(ast.NodeTransformer):
    def __init__(self, source: KernelFile) -> None:
        self.places: list[CauseLine] = []
        self._source, self._inside = source, ""

    def visit_Module(self, node: Any) -> Any:
        for at, part in enumerate(node.body):
            if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
                node.body[at] = self.visit(part)
        return node

    visit_ClassDef = visit_Module

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        before, self._inside = self._inside, node.name
        node.body = super().generic_visit(ast.Module(node.body, [])).body  # type: ignore[attr-defined]
        self._inside = before
        return node

    def visit_Assign(self, node: Any) -> list[ast.stmt]:
        held = [self._call(ast.Name(name, ast.Load()), node) for name in _written(node)]
        super().generic_visit(node)
        return [node, *(ast.copy_location(ast.Expr(each), node) for each in held)]

    visit_AugAssign = visit_Assign

    def generic_visit(self, node: Any) -> Any:
        if isinstance(node, _WHOLE):
            return node
        called = node.func if isinstance(node, ast.Call) else None
        super().generic_visit(node)
        if called is not None:  # which has no value of interest, but its owner has
            node.func = called
        is_loaded = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        return self._call(node, node) if isinstance(node, _VALUES) and is_loaded else node

    def _call(self, value: ast.expr, at: ast.AST) -> ast.expr:
        self.places.append(CauseLine(*astuple(self._source.line_of(at, self._inside))))
        number = ast.Constant(len(self.places) - 1)
        return ast.copy_location(ast.Call(ast.Name(_HOOK, ast.Load()), [number, value], []), at)


def _written(node: ast.Assign | ast.AugAssign) -> Iterator[str]:
    for part in node.targets if isinstance(node, ast.Assign) else [node.target]:
        whole = part
        while isinstance(whole, (ast.Subscript, ast.Attribute)):
            whole = whole.value
        is_changed = whole is not part or isinstance(node, ast.AugAssign)
        if is_changed and isinstance(whole, ast.Name):
            yield whole.id
