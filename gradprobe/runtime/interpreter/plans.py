"""Plans: what a function of triton.language does with operands of some types, worked out once and repeated since.

A function of the language sees types and constants alone, since a compiler has no values. So what it asks of the
builder is the same wherever types and constants are: casts, spreading and the choice of an instruction are not worked
out for each operation of each program again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as shipped

Handle: Any = shipped.TensorHandle
Step = tuple[str, tuple[Any, ...], Any]
"""The name of a builder's method, its arguments, and what it made."""
Keyed = tuple[tuple[Any, ...], Sequence[Any]]
"""The types and constants that a call was given, and its tensors."""
Repeat = Callable[..., Any]
"""Does what a call did, given the builder and the tensors."""
# Methods that make a constant of constants.
_CASTS = "si_to_fp ui_to_fp fp_to_si fp_to_ui fp_ext fp_trunc int_cast"
_OF_CONSTANTS = frozenset(f"create_{name}" for name in f"splat broadcast {_CASTS}".split())
# Types of constants that are equal only where they are the same.
_PLAIN = frozenset({int, bool, str, type(None)})
_ALL = slice(None)
_Tuple = getattr(tl.core, "tuple", tuple)
_Tensor = tl.tensor


class _NoPlan(Exception):
    """What a call did, or was given, is more than types, constants and the builder's methods."""


class Plans:
    """What the functions of triton.language do, as long as each type has one object for its tensors' shape."""

    def __init__(self, semantic: Any) -> None:
        self._semantic = semantic
        self._made: dict[Callable[..., Any], dict[tuple[Any, ...], Repeat | bool]] = {}
        """By function, and by types and constants: the plan; False where there can be none. True until there was a
        second call, which spreads nothing that numpy spreads, with operands that can be told apart."""
        self.is_used = False

    def __len__(self) -> int:
        return sum(map(len, self._made.values()))

    def forget(self) -> None:
        """Called where types are made anew."""
        for made in self._made.values():
            made.clear()

    def planned(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the language, given the semantic that it takes, and repeated where there is a plan."""
        semantic, made = self._semantic, self._made.setdefault(function, {})

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.is_used:
                return function(*args, **{**kwargs, "_semantic": semantic})
            keyed = _key_of_two(*args) if len(args) == 2 and not kwargs else None
            try:
                key, tensors = keyed or _key_of_all(args, kwargs)
            except _NoPlan:
                return function(*args, **{**kwargs, "_semantic": semantic})
            plan = made.get(key)
            if plan and plan is not True:
                return plan(semantic.builder, *tensors)
            if plan is None:
                made[key] = True
            elif plan and len({id(tensor.handle) for tensor in tensors}) == len(tensors):
                made[key], result = self._recorded(function, args, kwargs, tensors)
                return result
            return function(*args, **{**kwargs, "_semantic": semantic})

        return call

    def _recorded(self, function: Any, args: Any, kwargs: Any, tensors: Sequence[Any]) -> tuple[Repeat | bool, Any]:
        builder = self._semantic.builder
        self._semantic.builder = recorder = _Recorder(builder)
        try:
            with _truths_asked() as asked:
                result = function(*args, **{**kwargs, "_semantic": self._semantic})
        finally:
            self._semantic.builder = builder
        if asked or recorder.has_names:
            return False, result
        try:
            return plan_of(recorder.steps, tensors, result), result
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
        self.has_names = False
        """Whether an argument was passed by name, which no step holds."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._builder, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            self.steps.append((name, args, result))
            self.has_names |= bool(kwargs)
            return result

        return call


def plan_of(steps: Sequence[Step], tensors: Sequence[Any], result: Any) -> Repeat:
    """The steps of a call, as a function that takes them again.

    Raises:
        _NoPlan: the steps do not give the result.
    """
    returned = getattr(result, "handle", None)
    made_of_constants = _constants(steps, returned)
    named = {id(None): "None"}  # what a store makes
    named |= {id(tensor.handle): f"t{at}.handle" for at, tensor in reversed(list(enumerate(tensors)))}
    held: list[Any] = list(made_of_constants.values())
    named |= {key: f"c{at}" for at, key in enumerate(made_of_constants) if key not in named}
    lines = []
    for at, (name, args, made) in enumerate(step for step in steps if id(step[2]) not in made_of_constants):
        words = ", ".join(_word(arg, named, held) for arg in args)
        named.setdefault(id(made), f"v{at}")
        lines.append(f"v{at} = builder.{name}({words})")
    lines += _returning(result, tensors, named, held)
    parameters = ", ".join(["builder", *(f"t{at}" for at in range(len(tensors)))])
    text = "".join(f"\n        {line}" for line in lines)
    constants = ", ".join(f"c{at}" for at in range(len(held)))
    made = _maker(f"def make(new, tensor, {constants}):\n    def repeat({parameters}):{text}\n    return repeat\n")
    return made(object.__new__, tl.tensor, *held)  # type: ignore[no-any-return]


def _word(argument: Any, named: dict[int, str], held: list[Any]) -> str:
    """An argument of a step as it is written: what was made before it, else a constant, which is held."""
    if id(argument) not in named:
        if _holds_values(argument):
            raise _NoPlan
        held.append(argument)
        return f"c{len(held) - 1}"
    return named[id(argument)]


def _returning(result: Any, tensors: Sequence[Any], named: dict[int, str], held: list[Any]) -> list[str]:
    """The lines that make the result: nothing, an operand, or a tensor of its type."""
    if result is None:
        return ["return None"]
    if type(result) is not tl.tensor or id(result.handle) not in named:
        raise _NoPlan
    if (operand := next((at for at, tensor in enumerate(tensors) if tensor is result), None)) is not None:
        return [f"return t{operand}"]
    lines = ["made = new(tensor)"]
    for name, value in vars(result).items():
        held.append(value)
        lines.append(f"made.{name} = " + (named[id(value)] if name == "handle" else f"c{len(held) - 1}"))
    return [*lines, "return made"]


@functools.cache
def _maker(text: str) -> Callable[..., Any]:
    """What a text makes of constants. Few texts make all plans, since types and sizes are among the constants."""
    names: dict[str, Any] = {}
    exec(compile(text, __file__, "exec"), names)  # a file of this tool, which is no line of a kernel
    return names["make"]  # type: ignore[no-any-return]


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
    # Triton's own tuple may raise anything for a name that it lacks.
    if isinstance(thing, (list, tuple)) or type(thing) is _Tuple:
        return any(map(_holds_values, thing))
    return isinstance(thing, Handle) or hasattr(thing, "handle") or hasattr(thing, "materialize_pointers")


def _key_of_two(one: Any, other: Any) -> Keyed | None:
    """That of the most frequent operands, since a loop over both would take as long as most operations do.

    They are two tensors; or a tensor and a number, or the slices that spread it. None of others.
    """
    if type(one) is not _Tensor:
        return None
    kind = type(other)
    if kind is _Tensor:
        return (id(one.shape), id(other.shape)), (one, other)
    if kind is int or kind is float:
        return (id(one.shape), kind, repr(other) if kind is float else other), (one,)  # repr tells zeros apart
    if kind is tuple and all([each is None or (type(each) is slice and each == _ALL) for each in other]):
        return (id(one.shape), kind, *[each is None for each in other]), (one,)
    return None


def _key_of_all(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Keyed:
    """That of any operands. Raises _NoPlan, as `_key` does."""
    tensors: list[Any] = []
    key = _key(args, tensors)
    if kwargs:
        named = {name: argument for name, argument in kwargs.items() if name != "_semantic"}
        key += [*named, *_key(list(named.values()), tensors)]
    return tuple(key), tensors


def _key(arguments: Sequence[Any], tensors: list[Any]) -> list[Any]:
    """Types and constants. The tensors are added to a list.

    Raises:
        _NoPlan: there is something else among them.
    """
    key: list[Any] = []
    for argument in arguments:
        kind = type(argument)
        if kind is _Tensor:
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


PLANS = Plans(getattr(shipped, "interpreter_semantic", None))
"""Of this process's interpreter."""
