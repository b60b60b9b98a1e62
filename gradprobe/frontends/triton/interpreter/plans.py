"""What calls of triton.language ask of the builder, repeated for the same types and constants."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl
from triton.runtime import interpreter as shipped

Handle: Any = shipped.TensorHandle
Method = Callable[..., Any]
# The name of a method of the builder, its arguments, and what it made.
Step = tuple[str, tuple[Any, ...], Any]
# Plans that are kept before all are forgotten: a kernel may count to a constant each time.
MANY = 1 << 14
# Methods that make a constant of constants, and change nothing; those that begin with `get_` do so too.
_CASTS = "si_to_fp ui_to_fp fp_to_si fp_to_ui fp_ext fp_trunc int_cast"
_OF_CONSTANTS = frozenset(map("create_{}".format, f"splat broadcast {_CASTS}".split()))
# Types of constants, of which each value has words of its own: zeros are told apart.
_CONSTANTS = frozenset({int, bool, str, type(None), float, slice, tl.dtype})
# Of what an index may be made of: `x[:, None]`.
_INDEX = frozenset({slice, type(None)})
_Tuple = tl.core.tuple
_Tensor = tl.tensor


class Plans:
    def __init__(self, semantic: Any) -> None:
        self._semantic, self.is_used = semantic, False
        # By function, and by types and constants; False where there can be none.
        self._made: dict[Method, dict[Any, Any]] = {}
        # By type, what its tensors have in common.
        self._types: dict[tuple[str, Any], dict[str, Any]] = {}

    def use(self) -> None:
        if self.is_used:
            return
        self.is_used = True
        initialize, check = _Tensor.__init__, self._semantic.binary_op_type_checking_impl

        def init(tensor: Any, handle: Any, type: Any) -> None:
            key = type.name, getattr(type.scalar, "address_space", None)
            if key not in self._types:
                initialize(tensor, None, type)
                self._types[key] = dict(vars(tensor))
            vars(tensor).update(self._types[key])
            tensor.handle, tensor.type = handle, type

        def check_without_spreading(*args: Any, **named: Any) -> Any:
            found = check(*args, **named)
            for before, after in zip(args, found, strict=False):
                is_other = type(before) is _Tensor and after is not before and not named
                # An operand that was spread and not cast gets its values back: numpy spreads as it computes.
                if is_other and before.dtype == after.dtype:
                    after.handle = before.handle
            return found

        _Tensor.__init__ = init
        self._semantic.binary_op_type_checking_impl = check_without_spreading

    def forget(self, many: int = -1) -> None:
        """Not while a kernel runs: its tensors have the types."""
        if sum(map(len, self._made.values())) > many:
            self._types.clear()
            for made in self._made.values():
                made.clear()

    def asking(self, truth: Method) -> Method:
        def noted(tensor: Any) -> Any:
            if tensor.handle.data.size == 1:
                self._semantic.builder.is_plain = False
            return truth(tensor)

        return noted

    def planned(self, function: Method) -> Method:
        semantic, made = self._semantic, self._made.setdefault(function, {})

        def call(*args: Any, **kwargs: Any) -> Any:
            key, tensors = _key_of(args, kwargs) if self.is_used else (None, ())
            plan: Any = made.get(key) if key is not None else False
            if plan:
                return plan(semantic.builder, *tensors)
            kwargs["_semantic"] = semantic
            # Of one value that is given twice, a plan would take both for the first.
            if plan is False or len({id(tensor.handle) for tensor in tensors}) < len(tensors):
                return function(*args, **kwargs)
            builder = semantic.builder
            semantic.builder = recorder = _Recorder(builder)
            try:
                result = function(*args, **kwargs)
            finally:
                semantic.builder = builder
            plan = plan_of(recorder.steps, tensors, result) if recorder.is_plain else None
            made[key] = plan or False
            return result

        return call


class _Recorder:
    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self.steps: list[Step] = []
        # Whether no value was asked for, and no argument passed by name.
        self.is_plain = True

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._builder, name)
        if not callable(found):
            return found

        def call(*args: Any, **named: Any) -> Any:
            self.is_plain &= not named
            self.steps.append((name, args, found(*args, **named)))
            return self.steps[-1][2]

        return call


def plan_of(steps: Sequence[Step], tensors: Sequence[Any], result: Any) -> Any:
    returned, values, lines, end = getattr(result, "handle", None), list[Any](), list[str](), ""
    words = {id(tensor.handle): f"t{at}.handle" for at, tensor in enumerate(tensors)}
    # What is another thing each time, and what is the same: made of constants.
    live, fixed = set(words), set[int]()

    def word(thing: Any) -> str:
        if id(thing) not in words:
            words[id(thing)] = f"c{len(values)}"
            values.append(thing)
        return words[id(thing)]

    for name, args, product in _needed(steps, returned):
        if any(id(arg) not in live | fixed and _holds_values(arg) for arg in args):
            return None
        # What is returned is made anew, since others may change it.
        if product is not returned and _is_pure(name) and live.isdisjoint(map(id, args)):
            fixed.add(id(product))
            continue
        lines.append(f"v{len(lines)} = builder.{name}({', '.join(map(word, args))})")
        words.setdefault(id(product), f"v{len(lines) - 1}")
        live.add(id(product))
    if type(result) is _Tensor and id(returned) in live:
        lines.append("made = new(tensor)")
        for name, value in vars(result).items():
            lines.append(f"made.{name} = {word(value)}")
        end = "made"
    elif result is not None:
        return None
    given = "".join(map(", t{}".format, range(len(tensors))))
    constants = "".join(map(", c{}".format, range(len(values))))
    head = f"def make(new, tensor{constants}):\n def repeat(builder{given}):"
    text = "\n  ".join([head, *lines, f"return {end}\n return repeat"])
    return _maker(text)(object.__new__, _Tensor, *values)


@functools.cache
def _maker(text: str) -> Method:
    names = dict[str, Method]()
    # By a file of this tool, which is no line of a kernel.
    exec(compile(text, __file__, "exec"), names)
    return names["make"]


def _is_pure(method: str) -> bool:
    return method.startswith("get_") or method in _OF_CONSTANTS


def _needed(steps: Sequence[Step], returned: Any) -> list[Step]:
    needed, found = {id(returned)}, list[Step]()
    for name, args, made in reversed(steps):
        if id(made) in needed or not _is_pure(name):
            needed.update(map(id, args))
            found.append((name, args, made))
    return found[::-1]


def _holds_values(thing: Any) -> bool:
    # Triton's own tuple may raise anything for a name that it lacks.
    if isinstance(thing, (list, tuple, _Tuple)):
        return any(map(_holds_values, thing))
    return any(hasattr(thing, name) for name in ("data", "materialize_pointers", "handle"))


def _key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    # The loop takes as long as most operations do: of a tensor with another, a number or an index without it.
    if len(args) == 2 and not kwargs and type(args[0]) is _Tensor:
        first, second = args
        kind = type(second)
        if kind is _Tensor:
            return (id(first.shape), id(second.shape)), args
        if kind in (int, float) or (kind is tuple and _INDEX.issuperset(map(type, second))):
            return (id(first.shape), kind, repr(second)), args[:1]
    kwargs.pop("_semantic", None)
    key, tensors, waiting = list[Any](), list[Any](), [*args, *kwargs, *kwargs.values()]
    for each in waiting:
        kind = type(each)
        if kind is _Tensor:
            tensors.append(each)
            key.append(id(each.shape))
        elif kind in _CONSTANTS:
            key += kind, repr(each)
        elif kind is tl.constexpr:
            key.append(kind)
            waiting.append(each.value)
        elif kind in (tuple, list, _Tuple):
            key += kind, len(each)
            waiting += each
        else:
            return None, ()
    return tuple(key), tensors


PLANS = Plans(shipped.interpreter_semantic)


# --- what is patched, here and elsewhere


class InterpreterNotKnown(RuntimeError):
    """This release of Triton lacks something that must be patched."""


def wrapped(path: str, patch: Method) -> tuple[Any, str, Method]:
    """(owner, name, what is to stand there) of "function" or "Class.method"."""
    kind, _, name = path.rpartition(".")
    owner = getattr(shipped, kind, None) if kind else shipped
    original = getattr(owner, name, None)
    if original is None:
        raise InterpreterNotKnown(f"triton {triton.__version__}: its interpreter has no {path}")
    if not kind:
        return owner, name, functools.partial(patch, original)
    return owner, name, lambda *args, **kwargs: patch(original, *args, **kwargs)
