"""Functions of the host in a .cu file as targets: what their parameters mean by name, and how they are called."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.failures import UsageFailure, did_you_mean
from ...model.intermediates import title
from ...source.parameter_names import is_stride, stride_of, tensor_of, word_of
from .c_types import STREAM, types_as_written
from .cuda_syntax import Declared, DeclaredFunction
from .module import Launcher
from .source import read_source

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Mapping[str, Tensor]

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
_SIZE_OF = {word: axes for axes, words in _SIZES.items() for word in words.split()}
_INPUTS = ("q", "k", "v", "do", "o", "lse", "delta", "bias", "mask")
_SCALARS = {"scale": "scale", "sm_scale": "scale", "softmax_scale": "scale"}
_SCALARS |= {"causal": "causal", "is_causal": "causal", "softcap": "softcap"}
_AXES = {"q": "bhmd", "k": "bgnd", "v": "bgne", "do": "bhme", "o": "bhme", "dq": "bhmd", "dk": "bgnd", "dv": "bgne"}
_AXES |= {"lse": "bhm", "delta": "bhm"} | dict.fromkeys(("bias", "mask", "p", "dp", "ds"), "bhmn")
# Letters of axes that one word for a stride's axis stands for.
_STRIDES = {"b": "b", "h": "hg", "m": "mn", "d": "de"}
# (letter, letter, what the two are the size of): of one number where the first of these letters has none of its own.
_ALIKE = (("m", "n", "length of queries and keys"), ("d", "e", "head dim"), ("h", "g", "number of heads"))


@dataclass(frozen=True)
class Meaning:
    """What a parameter is passed."""

    kind: str
    """input, output, scalar, size, stride or stream."""
    what: str = ""
    """The tensor, the option, or the axes of a size."""
    axis: str = ""
    """Of a stride."""


def host_function(file: Path, name: str, word: str) -> tuple[Any, int]:
    """A function with q, k, v, dO and what else it needs by name, which calls one of the host; and its line.

    Raises:
        UsageFailure: there is none of this name, or it has a parameter whose name means nothing here.
        TargetFailure: the file cannot be read.
    """
    source = read_source(file)
    found = source.launchers
    if name not in found:
        way_out = did_you_mean(name, found, "it has") or "gradprobe.cuda.load calls kernels from Python"
        raise UsageFailure(f"target {word!r}: {file} has no function {name} that launches kernels", way_out)
    passed = meanings(found[name], word)
    if isinstance(passed, UsageFailure):
        raise passed
    return _Backward(Launcher(source, found[name]), passed).function(), found[name].line


def checkable(file: Path) -> list[str]:
    """The functions of a .cu file that can be checked as they stand, by name."""
    every = read_source(file).launchers.items()
    return [name for name, function in every if not isinstance(meanings(function, name), UsageFailure)]


def no_launcher(file: Path, word: str) -> UsageFailure:
    """Why none of a file's functions can be checked."""
    every = read_source(file).launchers.items()
    refused = [meanings(function, f"{file}:{name}") for name, function in every]
    words = f"target {word!r}: {file} has no function that launches kernels"
    general = UsageFailure(words, "call them from Python, through gradprobe.cuda.load")
    return next((each for each in refused if isinstance(each, UsageFailure)), general)


def meanings(function: DeclaredFunction, word: str) -> dict[str, Meaning] | UsageFailure:
    """What each parameter is passed, by its name; a failure where a name means nothing here, or nothing is written."""
    named = [word_of(parameter.name) for parameter in function.parameters if parameter.type.endswith("*")]
    pointers = [*named, *filter(None, map(tensor_of, named))]
    found: dict[str, Meaning] = {}
    for parameter in function.parameters:
        meaning = _meaning(parameter, pointers)
        if meaning is None:
            words = f"target {word!r} needs a parameter {parameter.name!r} that gradprobe has no value for"
            return UsageFailure(words, "call it from Python, through gradprobe.cuda.load")
        found[parameter.name] = meaning
    if any(meaning.kind == "output" for meaning in found.values()):
        return found
    return UsageFailure(f"target {word!r} writes nothing that is an intermediate", "a backward writes dq, dk or dv")


def _meaning(parameter: Declared, pointers: Sequence[str]) -> Meaning | None:
    name, kind = parameter.name, parameter.type
    if kind == STREAM:
        return Meaning("stream")
    if kind.endswith("*"):
        tensor = tensor_of(name)
        if tensor in _INPUTS and (parameter.is_const or tensor in ("q", "k", "v", "do", "o")):
            return Meaning("input", tensor)
        return Meaning("output", tensor) if not parameter.is_const and tensor in _AXES else None
    word, axis = stride_of(name, pointers)
    if word and tensor_of(word) in _AXES:
        return Meaning("stride", tensor_of(word), axis)
    if scalar := _SCALARS.get(name.lower()):
        return Meaning("scalar", scalar)
    size = _SIZE_OF.get(name.lower().replace("_", ""), "")
    return Meaning("size", size) if size and not is_stride(name) else None


class _Backward:
    """A host function that is called with the tensors of a case, as a backward of an attention."""

    def __init__(self, launcher: Launcher, passed: Mapping[str, Meaning]) -> None:
        self._launcher, self._passed, self._name = launcher, passed, launcher.function.name
        self._letters = "".join(self._named("size"))
        # Of batches and heads, those that one call computes all of; told of batches alone, it takes heads for such.
        self._whole = "bh" if "b" in self._letters else "h" if "h" in self._letters else ""

    def _named(self, kind: str) -> list[str]:
        return [meaning.what for meaning in self._passed.values() if meaning.kind == kind]

    def function(self) -> Any:
        """It with the parameters of a backward in Python."""

        def backward(**given: Any) -> dict[str, Tensor]:
            return self._run(given)

        names = dict.fromkeys(("q", "k", "v", "do", *sorted({*self._named("input"), *self._named("scalar")})))
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        backward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        backward.__name__ = backward.__qualname__ = self._name
        return backward

    def _run(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """Calls it once, or once for each batch or head that it is not told the number of.

        It raises ValueError, which refuses a layout, where it is not told of a stride or of a size that differs.
        """
        import torch

        sizes = {axis: size for name in "qkv" for axis, size in zip(_AXES[name], given[name].shape, strict=True)}
        for first, second, what in _ALIKE:
            is_one = "l" in self._letters if first == "m" else second not in self._letters
            if is_one and sizes[first] != sizes[second]:
                raise ValueError(f"{self._name} takes one {what}")
        sizes["l"] = sizes["m"]
        tensors = {name: self._laid(name, given[name]) for name in self._named("input")}
        for parameter in self._launcher.function.parameters:
            meaning, q = self._passed[parameter.name], given["q"]
            if meaning.kind == "output":  # of zeros, since it may add to what it finds
                (taken,) = types_as_written(self._launcher.source, [parameter])
                dtype = {4: torch.float32, 8: torch.float64}.get(taken.of, q.dtype)
                shape = [sizes[axis] for axis in _AXES[meaning.what]]
                tensors[meaning.what] = torch.zeros(shape, dtype=dtype, device=q.device)
        batches = [None] if "b" in self._whole else range(sizes["b"])
        heads = [None] if "h" in self._whole else range(sizes["h"])
        for batch, head in itertools.product(batches, heads):
            here = {name: _part(name, tensor, sizes, batch, head) for name, tensor in tensors.items()}
            self._launcher(*self._arguments(given, here, tensors, sizes))
        return {title(name): tensors[name] for name in self._named("output")}

    def _arguments(
        self, given: Mapping[str, Any], here: Tensors, tensors: Tensors, sizes: Mapping[str, int]
    ) -> Iterator[Any]:
        """What its parameters are passed, but for its streams."""
        for meaning in self._passed.values():
            if meaning.kind in ("input", "output"):
                yield here[meaning.what]
            elif meaning.kind == "scalar":
                yield given[meaning.what]
            elif meaning.kind == "size":
                is_flat = meaning.what == "b" and "h" not in self._letters
                yield math.prod(sizes[axis] for axis in ("bh" if is_flat else meaning.what))
            elif meaning.kind == "stride":
                axes = [at for at, axis in enumerate(_AXES[meaning.what]) if axis in _STRIDES[meaning.axis]]
                yield tensors[meaning.what].stride(axes[0]) if axes else 0

    def _laid(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of whose strides it is told, where the others follow; contiguous where it is told of none."""
        strides = [meaning for meaning in self._passed.values() if (meaning.kind, meaning.what) == ("stride", name)]
        if not strides:
            return tensor.contiguous()
        letters, due = "".join(_STRIDES[stride.axis] for stride in strides), 1
        for at in reversed(range(tensor.dim())):
            axis = _AXES[name][at].replace("g", "h")
            is_free = _AXES[name][at] in letters or (axis in "bh" and axis not in self._whole)
            if not is_free and tensor.shape[at] > 1 and tensor.stride(at) != due:
                raise ValueError(f"{self._name} is not told of {name}.stride({at})")
            due = tensor.stride(at) * tensor.shape[at]
        return tensor


def _part(name: str, tensor: Tensor, sizes: Mapping[str, int], batch: int | None, head: int | None) -> Tensor:
    """What of a tensor one call computes with; None: of all batches, or heads."""
    if head is not None:
        shared = sizes["h"] // sizes["g"] if _AXES[name][1] == "g" else 1
        tensor = tensor[:, head // shared]
    return tensor if batch is None else tensor[batch]
