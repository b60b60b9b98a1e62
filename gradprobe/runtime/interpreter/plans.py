"""Plans: what a function of triton.language does with operands of some types, worked out once and repeated since.

A function of the language sees types and constants alone, since a compiler has no values. So what it asks of the
builder is the same wherever types and constants are: casts, spreading and the choice of an instruction are not worked
out for each operation of each program again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as shipped

Handle: Any = shipped.TensorHandle
Step = tuple[str, tuple[Any, ...], Any]
"""The name of a builder's method, its arguments, and what it made."""
# Methods that make a constant of constants.
_CASTS = "si_to_fp ui_to_fp fp_to_si fp_to_ui fp_ext fp_trunc int_cast"
_OF_CONSTANTS = frozenset(f"create_{name}" for name in f"splat broadcast {_CASTS}".split())
# Types of constants that are equal only where they are the same.
_PLAIN = frozenset({int, bool, str, type(None)})


class _NoPlan(Exception):
    """What a call did, or was given, is more than types, constants and the builder's methods."""


class Plans:
    """What the functions of triton.language do, as long as each type has one object for its tensors' shape."""

    def __init__(self, semantic: Any) -> None:
        self._semantic = semantic
        self._made: dict[tuple[Any, ...], _Plan | bool] = {}
        """By function, types and constants: the plan; False where there can be none. True until there was a second
        call, which spreads nothing that numpy spreads, with operands that can be told apart."""
        self.is_used = False

    def __len__(self) -> int:
        return len(self._made)

    def forget(self) -> None:
        """Called where types are made anew."""
        self._made.clear()

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """While open, each operation is worked out by itself."""
        before, self.is_used = self.is_used, False
        try:
            yield
        finally:
            self.is_used = before

    def planned(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the language, given the semantic that it takes, and repeated where there is a plan."""
        semantic, made = self._semantic, self._made

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            if not self.is_used:
                return function(*args, **kwargs)
            tensors: list[Any] = []
            try:
                key = (function, *_key(args, tensors), *(_named(kwargs, tensors) if len(kwargs) > 1 else ()))
            except _NoPlan:
                return function(*args, **kwargs)
            plan = made.get(key)
            if plan is None:
                made[key] = True
            elif plan is True and len({id(tensor.handle) for tensor in tensors}) == len(tensors):
                made[key], result = self._recorded(function, args, kwargs, tensors)
                return result
            elif type(plan) is _Plan:
                return plan.repeated(semantic.builder, tensors)
            return function(*args, **kwargs)

        return call

    def _recorded(self, function: Any, args: Any, kwargs: Any, tensors: Sequence[Any]) -> tuple[_Plan | bool, Any]:
        builder = self._semantic.builder
        self._semantic.builder = recorder = _Recorder(builder)
        try:
            with _truths_asked() as asked:
                result = function(*args, **kwargs)
        finally:
            self._semantic.builder = builder
        if asked:
            return False, result
        try:
            return _Plan(recorder.steps, tensors, result), result
        except _NoPlan:
            return False, result


@contextlib.contextmanager
def _truths_asked() -> Iterator[list[Any]]:
    """The tensors of one element that are taken for a bool while it is open, which only the interpreter can do."""
    asked: list[Any] = []
    truth = getattr(tl.tensor, "__bool__", None)
    if truth is None:  # outside a launch
        yield asked
        return

    def noted(tensor: Any) -> bool:
        if tensor.handle.data.size == 1:
            asked.append(tensor)
        return bool(truth(tensor))

    tl.tensor.__bool__ = noted
    try:
        yield asked
    finally:
        tl.tensor.__bool__ = truth


class _Recorder:
    """The builder, with account of what is called."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self.steps: list[Step] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._builder, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            self.steps.append((name, (*args, *kwargs.items()), result))
            return result

        return call


class _Plan:
    """The steps of a call, whose values have numbers: first its operands, then what each step makes, then constants."""

    def __init__(self, steps: Sequence[Step], tensors: Sequence[Any], result: Any) -> None:
        """Raises _NoPlan where the steps do not give the result."""
        returned = getattr(result, "handle", None)
        constants = _constants(steps, returned)
        steps = [step for step in steps if id(step[2]) not in constants]
        self._held: list[Any] = [None] * len(steps)
        self._many = len(tensors)
        made = [*(tensor.handle for tensor in tensors), *(made for _, _, made in steps), *constants.values()]
        self._held += constants.values()
        self._numbers: dict[int, int] = {}
        for at, handle in enumerate(made):
            self._numbers.setdefault(id(handle), at)
        self._steps = [
            (self._many + at, name, itemgetter(*map(self._number, args)) if args else _nothing, len(args) == 1)
            for at, (name, args, _) in enumerate(steps)
        ]
        self._operand = next((at for at, tensor in enumerate(tensors) if tensor is result), None)
        self._returned = None if result is None else self._numbers.get(id(returned))
        if result is not None and (type(result) is not tl.tensor or self._returned is None):
            raise _NoPlan
        self._attributes = dict(vars(result)) if result is not None else {}
        self._attributes.pop("handle", None)
        self._numbers.clear()

    def _number(self, argument: Any) -> int:
        """The number of an argument of a step."""
        number = self._numbers.get(id(argument))
        if number is None:
            if _holds_values(argument):
                raise _NoPlan
            number = self._many + len(self._held)
            self._held.append(argument)
        return number

    def repeated(self, builder: Any, tensors: Sequence[Any]) -> Any:
        """What the call gives for these operands."""
        values = [tensor.handle for tensor in tensors]
        values += self._held
        for number, name, arguments, is_one in self._steps:
            method = getattr(builder, name)
            values[number] = method(arguments(values)) if is_one else method(*arguments(values))
        if self._returned is None:
            return None
        if self._operand is not None:
            return tensors[self._operand]
        made = object.__new__(tl.tensor)
        attributes = vars(made)
        attributes.update(self._attributes)
        attributes["handle"] = values[self._returned]
        return made


def _nothing(_values: Sequence[Any]) -> tuple[()]:
    """The arguments of a step that takes none, as a barrier."""
    return ()


def _constants(steps: Sequence[Step], returned: Any) -> dict[int, Any]:
    """By id, what steps made of constants alone. What is returned is made anew, since others may change it."""
    found: dict[int, Any] = {}
    for name, args, made in steps:
        of_constants = name in _OF_CONSTANTS and all(id(arg) in found or not _holds_values(arg) for arg in args)
        if made is not returned and made is not None and (name.startswith("get_") or of_constants):
            found[id(made)] = made
    return found


def _holds_values(thing: Any) -> bool:
    """Whether something holds values of a program, which are others in each."""
    if isinstance(thing, (list, tuple)):
        return any(map(_holds_values, thing))
    return isinstance(thing, Handle) or hasattr(thing, "handle") or hasattr(thing, "materialize_pointers")


def _key(arguments: Sequence[Any], tensors: list[Any]) -> list[Any]:
    """Types and constants. The tensors are added to a list.

    Raises:
        _NoPlan: there is something else among them.
    """
    key: list[Any] = []
    for argument in arguments:
        kind = type(argument)
        if kind is tl.tensor:
            tensors.append(argument)
            key.append(id(argument.shape))
        elif kind in _PLAIN:
            key.append((kind, argument))
        else:
            key.append((kind, _other(argument, kind, tensors)))
    return key


def _other(argument: Any, kind: type, tensors: list[Any]) -> Any:
    if kind is float:
        return repr(argument)  # tells zeros apart
    if kind is tl.constexpr:
        return _key([argument.value], tensors)[0]
    if kind is tl.dtype:
        return argument.name
    if kind in (tuple, list, tl.core.tuple):
        return tuple(_key(list(argument), tensors))
    if kind is slice:
        return tuple(_key([argument.start, argument.stop, argument.step], tensors))
    raise _NoPlan


def _named(kwargs: Mapping[str, Any], tensors: list[Any]) -> list[Any]:
    given = {name: argument for name, argument in kwargs.items() if name != "_semantic"}
    return [*given, *_key(list(given.values()), tensors)]


PLANS = Plans(getattr(shipped, "interpreter_semantic", None))
"""Of this process's interpreter."""
