"""Interpreted launches, noted with their memory, and run again."""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton.runtime import interpreter as shipped

from ....inputs.memory import Array
from ... import replaced
from ..launches import tensors_in
from .language_patches import language_replaced, named, with_globals
from .stream import Stream, Watcher
from .views import Access, Program

# What storages hold, by their addresses.
Bytes = dict[int, Tensor]
# By file and name, functions that are edited: from `code_of`.
Codes = Mapping[tuple[str, str], CodeType]


class TooManyAccesses(BaseException):  # it is to pass whoever catches errors
    """A kernel made more accesses than it may."""


@dataclass(eq=False)
class RecordedLaunch:
    kernel: Any
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    grid: Program = (1, 1, 1)
    before: Bytes = field(default_factory=dict)
    after: Bytes = field(default_factory=dict)

    @cached_property
    def own(self) -> dict[str, Any]:
        found = {self.kernel.fn.__name__: self.kernel}
        for function in (waiting := [self.kernel.fn]):
            for name in function.__code__.co_names:
                value = function.__globals__.get(name)
                is_kernel = isinstance(value, shipped.InterpretedFunction) and name not in found
                if is_kernel and value.fn.__code__.co_filename == function.__code__.co_filename:
                    found[name] = value
                    waiting.append(value.fn)
        return found

    @property
    def functions(self) -> set[tuple[str, str]]:
        return {(self.kernel.fn.__code__.co_filename, name) for name in self.own}

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for _, tensor, _ in tensors_in((*self.args, *self.named.values()))]

    @property
    def programs(self) -> list[tuple[int, ...]]:
        return list(np.ndindex(self.grid))

    def copies(self) -> Bytes:
        return {address: memory.clone() for address, memory in self.storages.items()}

    def restore(self, copies: Bytes) -> None:
        for address, memory in self.storages.items():
            memory.copy_(copies[address])

    @property
    def is_as_after(self) -> bool:
        return all(memory.equal(self.after[at]) for at, memory in self.storages.items())

    @cached_property
    def storages(self) -> Bytes:
        found = Bytes()
        for tensor in self.tensors:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8).set_(storage)
        return found


@contextlib.contextmanager
def recorded_kernels(most: int) -> Iterator[list[RecordedLaunch]]:
    """With at most `most` bytes of memory, else none."""
    found, method, left = list[RecordedLaunch](), shipped.InterpretedFunction.run, most

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        nonlocal left
        launch = RecordedLaunch(kernel, args, named)
        left -= 0 if warmup else 2 * sum(map(Tensor.numel, launch.storages.values()))
        if left < 0:
            found.clear()
        is_kept = not warmup and left >= 0
        launch.before = launch.copies() if is_kept else {}
        result = method(kernel, *args, grid=grid, warmup=warmup, **named)
        if is_kept:
            launch.grid = tuple(shipped.interpreter_builder.grid_dim)
            launch.after = launch.copies()
            found.append(launch)
        return result

    with replaced(shipped.InterpretedFunction, "run", run):
        yield found


class Replay(Watcher):
    """An access that leaves its storage is not made, and counted."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[Replay]:
        self.reset(0)
        quiet = np.errstate(all="ignore"), warnings.catch_warnings()
        with Stream({}, (self,), {}).opened(), quiet[0], quiet[1], language_replaced():
            warnings.simplefilter("ignore")
            yield self

    def reset(self, most: int) -> None:
        self.accesses, self.strays, self._most = 0, 0, most
        # The storages that are; of atomics both.
        self.read, self.written = set[int](), set[int]()

    def run(
        self, launch: RecordedLaunch, codes: Codes, programs: Sequence[tuple[int, ...]]
    ) -> None:
        """Raises TooManyAccesses, and what the kernel may."""
        kernel, builder, grid = launch.kernel, shipped.InterpreterBuilder, (len(programs),)
        about = kernel.arg_names, grid, kernel.pre_run_hooks

        def at(builder: Any, number: int, *_: int) -> None:
            builder.grid_dim, builder.grid_idx = launch.grid, programs[number]

        keep = replaced(builder, "set_grid_dim", lambda *_: None)
        with keep, replaced(builder, "set_grid_idx", at):
            shipped.GridExecutor(_rebound(launch, codes), *about)(*launch.args, **launch.named)

    def before(self, access: Access) -> Array | None:
        self.accesses += 1
        if self.accesses > self._most:
            raise TooManyAccesses
        kept = np.zeros(access.lanes.shape, bool)
        for view, lanes, addresses in access.parts:
            inside = view.in_storage(addresses, access.width)
            kept[lanes[inside]] = True
            if inside.any() and access.kind != "store":
                self.read.add(view.home)
            if inside.any() and access.kind != "load":
                self.written.add(view.home)
        strays = int(access.lanes.sum() - kept.sum())
        self.strays += strays
        return kept if strays else None


def _rebound(launch: RecordedLaunch, codes: Codes) -> Any:
    kernel = launch.kernel.fn
    namespace = dict(kernel.__globals__)
    for name, value in launch.own.items():
        was, scope = value.fn, dict[str, Any]()
        if code := codes.get((was.__code__.co_filename, was.__name__)):
            exec(code, namespace, scope)
        made = scope[was.__name__] if code else with_globals(namespace, value.rewrite())
        namespace[name] = named(made, with_globals(namespace, was))
    return namespace[kernel.__name__]


def code_of(function: ast.FunctionDef, file: str) -> CodeType:
    function.decorator_list = []
    tree = shipped.FunctionRewriter.ast_transformer.visit(ast.Module([function], []))
    return compile(ast.fix_missing_locations(tree), file, "exec")
