"""Functions of the host in a .cu file as targets."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Mapping, Sequence
from ctypes import c_double, c_float
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...model.failures import UsageFailure, did_you_mean
from ...model.intermediates import title
from ...source.parameter_names import is_stride, stride_of, tensor_of, word_of
from .c_types import number_type
from .cuda_syntax import Declaration, DeclaredFunction
from .module import STREAM, Launcher
from .source import read_source

if TYPE_CHECKING:
    from torch import Tensor

# What sizes are called, without underscores, with the axes whose product each is: b batch, h head, g key head, m query
# row, n key, l either where there are as many, d and e the dims of keys and values.
_SIZES = {
    "b": "b batch batchsize bs bsz nbatch numbatches z",
    "h": "h heads numheads nheads nh hq numqheads numheadsq",
    "g": "hk hkv kvheads numkvheads numheadsk numheadskv nkvheads",
    "bh": "bh batchheads batchnheads nbh",
    "m": "m lq tq sq seqlenq qlen nq lenq",
    "n": "lk tk sk seqlenk kvlen nk lenk seqlenkv",
    "l": "l n t s seq seqlen seqlength nctx length tokens rows nrows numrows",
    "d": "d dim headdim dhead hd headsize dq dk dqk",
    "e": "dv e headdimv dimv",
}
_SIZE_OF = dict[str, str]()
for _axes, _words in _SIZES.items():
    _SIZE_OF |= dict.fromkeys(_words.split(), _axes)
_SCALARS = dict.fromkeys(("scale", "sm_scale", "softmax_scale"), "scale")
_SCALARS |= {"causal": "causal", "is_causal": "causal", "softcap": "softcap"}
_NEVER_WRITTEN = ("q", "k", "v", "do", "o")
_INPUTS = (*_NEVER_WRITTEN, "lse", "delta", "bias", "mask")
_WITH_AXES = {
    "bhm": "lse delta", "bgnd": "k dk", "bgne": "v dv", "bhmd": "q dq", "bhme": "o do",
    "bhmn": "bias mask p dp ds",
}  # fmt: skip
_AXES = dict[str, str]()
for _axes, _names in _WITH_AXES.items():
    _AXES |= dict.fromkeys(_names.split(), _axes)
# Letters of axes that one word for a stride's axis stands for.
_STRIDES = {"b": "b", "h": "hg", "m": "mn", "d": "de"}
# Two letters, and what the two are the size of: of one number where the first of these letters has none of its own.
_ALIKE = (
    ("m", "n", "length of queries and keys"), ("d", "e", "head dim"), ("h", "g", "number of heads"),
)  # fmt: skip
_BY_HAND = "call it from Python, through gradprobe.cuda.load"


class Meaning(NamedTuple):
    kind: str
    what: str = ""
    axis: str = ""


def host_function(file: Path, name: str, word: str) -> tuple[Any, int]:
    """A function of q, k, v, do, the first where none is named; and its line."""
    source = read_source(file)
    function = source.launchers.get(name or next(iter(source.launchers), ""))
    if function is None:
        way_out = did_you_mean(name, source.launchers, "it has") if name else _BY_HAND
        missing = f"{file} has no function {name}".rstrip() + " that launches kernels"
        raise UsageFailure(f"target {word!r}: {missing}", way_out)
    passed = meanings(function, word if name else f"{word}:{function.name}")
    return _Backward(Launcher(source, function.name, function), passed).function(), function.line


def checkable(file: Path) -> list[str]:
    found = list[str]()
    for name, function in read_source(file).launchers.items():
        with contextlib.suppress(UsageFailure):
            meanings(function, name)
            found.append(name)
    return found


def meanings(function: DeclaredFunction, word: str) -> dict[str, Meaning]:
    """UsageFailure where a name means nothing, or no result is written."""
    pointers = [word_of(each.name) for each in function.parameters if each.type.endswith("*")]
    pointers += filter(None, map(tensor_of, [*pointers]))
    found: dict[str, Meaning] = {}
    for parameter in function.parameters:
        if (meaning := _meaning(parameter, pointers)) is None:
            words = f"needs a parameter {parameter.name!r} that gradprobe has no value for"
            raise UsageFailure(f"target {word!r} {words}", _BY_HAND)
        found[parameter.name] = meaning
    if all(meaning.kind != "output" for meaning in found.values()):
        words = f"target {word!r} writes nothing that is an intermediate"
        raise UsageFailure(words, "a backward writes dq, dk or dv")
    return found


def _meaning(parameter: Declaration, pointers: Sequence[str]) -> Meaning | None:
    name, tensor = parameter.name, tensor_of(parameter.name)
    if parameter.type == STREAM:
        return Meaning("stream")
    if parameter.type.endswith("*"):
        if tensor in _INPUTS and (parameter.is_const or tensor in _NEVER_WRITTEN):
            return Meaning("input", tensor)
        return Meaning("output", tensor) if not parameter.is_const and tensor in _AXES else None
    word, axis = stride_of(name, pointers)
    if axis in _STRIDES and tensor_of(word) in _AXES:
        return Meaning("stride", tensor_of(word), axis)
    if scalar := _SCALARS.get(name.lower()):
        return Meaning("scalar", scalar)
    size = _SIZE_OF.get(name.lower().replace("_", ""), "")
    return Meaning("size", size) if size and not is_stride(name) else None


class _Backward:
    def __init__(self, launcher: Launcher, passed: Mapping[str, Meaning]) -> None:
        self._launcher, self._passed, self._name = launcher, passed, launcher.function.name
        self._letters = "".join(self._named("size"))
        # Of batches and heads, those of which one call computes one; told of batches alone, it takes heads for such.
        self._single = "" if "b" in self._letters else "b" if "h" in self._letters else "bh"

    def _named(self, kind: str) -> list[str]:
        return [meaning.what for meaning in self._passed.values() if meaning.kind == kind]

    def function(self) -> Any:
        def backward(**given: Any) -> dict[str, Tensor]:
            return self._run(given)

        more = sorted(self._named("input") + self._named("scalar"))
        names = dict.fromkeys(["q", "k", "v", "do", *more])
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        vars(backward)["__signature__"] = inspect.Signature(parameters)
        backward.__name__ = backward.__qualname__ = self._name
        return backward

    def _run(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        sizes: dict[str, int] = {}
        for name in "qkv":
            sizes |= dict(zip(_AXES[name], given[name].shape, strict=True))
        for first, second, what in _ALIKE:
            is_one = "l" in self._letters if first == "m" else second not in self._letters
            if is_one and sizes[first] != sizes[second]:
                raise ValueError(f"{self._name} takes one {what}")
        sizes["l"] = sizes["m"]
        tensors = {name: self._laid(name, given[name]) for name in self._named("input")}
        tensors |= self._outputs(given["q"], sizes)
        for place in itertools.product(*(range(sizes[axis]) for axis in self._single)):
            arguments, at = list[Any](), dict[str, Any](zip(self._single, place, strict=True))
            at |= {"g": at["h"] * sizes["g"] // sizes["h"]} if "h" in at else {}
            for kind, what, letter in self._passed.values():
                axes = _AXES.get(what, what)
                axes = "bh" if axes == "b" and "h" not in self._letters else axes
                if kind in ("input", "output"):
                    index = tuple(at.get(axis, slice(None)) for axis in axes)
                    arguments.append(tensors[what][index])
                elif kind == "scalar":
                    arguments.append(given[what])
                elif kind == "size":
                    arguments.append(math.prod(map(sizes.__getitem__, axes)))
                elif kind == "stride":
                    first = next(filter(_STRIDES[letter].__contains__, axes), "")
                    arguments.append(tensors[what].stride(axes.index(first)) if first else 0)
            self._launcher(*arguments)
        return {title(name): tensors[name] for name in self._named("output")}

    def _outputs(self, q: Tensor, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Zeros, since it may add to what it finds."""
        import torch

        found, dtypes = {}, {c_float: torch.float32, c_double: torch.float64}
        for parameter in self._launcher.function.parameters:
            kind, what, _ = self._passed[parameter.name]
            if kind == "output":
                number = number_type(self._launcher.source, parameter.type.removesuffix("*"))
                shape = [sizes[axis] for axis in _AXES[what]]
                found[what] = q.new_zeros(shape, dtype=dtypes.get(number, q.dtype))
        return found

    def _laid(self, name: str, tensor: Tensor) -> Tensor:
        told = [each.axis for each in self._passed.values() if each[:2] == ("stride", name)]
        if not told:
            return tensor.contiguous()
        free, due = "".join(map(_STRIDES.__getitem__, [*told, *self._single])), 1
        for number, axis in reversed([*enumerate(_AXES[name])]):
            size, stride = tensor.shape[number], tensor.stride(number)
            if axis not in free and size > 1 and stride != due:
                raise ValueError(f"{self._name} is not told of {name}.stride({number})")
            due = stride * size
        return tensor
