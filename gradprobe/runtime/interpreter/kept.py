"""A patch that makes each type once: the interpreter makes them anew in every operation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as shipped

from ...model.mechanisms import is_on
from .plans import PLANS

# Types, and plans, that are kept before all are forgotten: a kernel may make types, or count to a constant, each time.
_MANY = 1 << 14
_PATCHED = ("binary_op_type_checking_impl", "cast")
Attributes = dict[str, Any]


@functools.cache
def keep_types() -> None:
    """Patches the interpreter to do nothing again that every operation does alike: most of its time.

    A release that has other names for what is patched is as slow as it is.
    """
    options, semantic = shipped.interpreter_builder.options, getattr(shipped, "interpreter_semantic", None)
    if not all(hasattr(semantic, name) for name in _PATCHED):
        return
    if not hasattr(tl.core, "tuple") or not hasattr(options, "sanitize_overflow"):
        return
    _Kept(tl.core, semantic).patch()
    if not options.debug:  # no overflow is sought that would not be told
        shipped.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)


class _Kept:
    """What operations have in common, by the ids of objects that are kept with it."""

    def __init__(self, core: Any, semantic: Any) -> None:
        self._core, self._semantic = core, semantic
        self._make_block, self._make_tensor = core.block_type.__init__, core.tensor.__init__
        self._check = semantic.binary_op_type_checking_impl
        # What `__init__` set: by the ids of the element type and the sizes, and by those of what a tensor's type holds.
        self._blocks: dict[tuple[int, tuple[Any, ...]], Attributes] = {}
        self._tensors: dict[tuple[int, int], tuple[Attributes, Any]] = {}
        self._pointers: dict[str, Any] = {}
        """By name: the one type for pointers of all launches."""
        self._shapes: dict[tuple[Any, ...], Any] = {}
        # What the operands of an operation become: by the ids of their shapes, of which each type has one of its own.
        self._operands: dict[tuple[Any, ...], tuple[Any, Attributes, Attributes]] = {}

    def patch(self) -> None:
        core, launch = self._core, shipped.GridExecutor.__call__

        def launch_afresh(executor: Any, *args: Any, **kwargs: Any) -> Any:
            if max(len(self._tensors), len(PLANS)) > _MANY:
                self._forget()
            return launch(executor, *args, **kwargs)

        shipped.GridExecutor.__call__ = launch_afresh
        core.block_type.__init__ = _method(self._init_block)
        core.tensor.__init__ = _method(self._init_tensor)
        self._semantic.binary_op_type_checking_impl = self._check_once
        PLANS.is_used = is_on("plans")

    def _forget(self) -> None:
        for kept in (self._blocks, self._tensors, self._pointers, self._shapes, self._operands):
            kept.clear()
        PLANS.forget()

    def _init_block(self, block: Any, element_ty: Any, shape: Any) -> None:
        core = self._core
        listed: Any = shape if type(shape) in (list, core.tuple) else [None]
        sizes = tuple([size.value if type(size) is core.constexpr else size for size in listed])
        if not all([type(size) is int for size in sizes]):
            self._make_block(block, element_ty, shape)
        elif (made := self._blocks.get((id(element_ty), sizes))) is not None:
            vars(block).update(made)
        else:
            self._make_block(block, element_ty, shape)
            block.shape = self._shapes.setdefault(sizes, block.shape)
            self._blocks[id(element_ty), sizes] = dict(vars(block))

    def _init_tensor(self, tensor: Any, handle: Any, type: Any) -> None:
        key = (id(type.shape), id(type.element_ty)) if type.is_block() else (id(type), 0)
        made = self._tensors.get(key)
        if made is None and type.is_ptr() and type.address_space == 1:  # each launch makes types for its arguments
            type = self._pointers.setdefault(type.name, type)
            key = (id(type), 0)
            made = self._tensors.get(key)
        if made is None:
            self._make_tensor(tensor, handle, type)
            # With the type, so that no other object takes its id.
            self._tensors[key] = dict(vars(tensor)), type
        else:
            vars(tensor).update(made[0])
            tensor.handle, tensor.type = handle, type

    def _check_once(self, one: Any, other: Any, *allowed: bool, **named: bool) -> Any:
        """Two operands of one type and shape. Their values keep their own shapes: numpy spreads them as it computes."""
        tensor = self._core.tensor
        if type(one) is not tensor or type(other) is not tensor or named:
            return self._check(one, other, *allowed, **named)
        key = (id(one.shape), id(other.shape), *allowed)
        made = self._operands.get(key)
        if made is not None:
            return self._retyped(one, made[1]), self._retyped(other, made[2])
        first, second = self._check(one, other, *allowed)
        self._operands[key] = (one.shape, other.shape), dict(vars(first)), dict(vars(second))
        return first, second

    def _retyped(self, tensor: Any, attributes: Attributes) -> Any:
        if tensor.dtype is not attributes["dtype"]:
            tensor = self._semantic.cast(tensor, attributes["dtype"])
        if tensor.shape is attributes["shape"]:
            return tensor
        made = object.__new__(self._core.tensor)
        vars(made).update(attributes)
        made.handle = tensor.handle
        return made


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(owner: Any, *args: Any) -> Any:
        return function(owner, *args)

    return method
