"""Functions of the host in a .cu file as targets: what their parameters mean by name, and how they are called."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...model.failures import UsageFailure, did_you_mean
from ...model.intermediates import title
from ...source.parameter_names import is_stride, stride_of, tensor_of, word_of
from .c_types import STREAM, types_as_written
from .cuda_syntax import Declaration, DeclaredFunction
from .module import Launcher
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
_SIZE_OF = {word: axes for axes, words in _SIZES.items() for word in words.split()}
_SCALARS = dict.fromkeys(("scale", "sm_scale", "softmax_scale"), "scale")
_SCALARS |= {"causal": "causal", "is_causal": "causal", "softcap": "softcap"}
_INPUTS = ("q", "k", "v", "do", "o", "lse", "delta", "bias", "mask")
_NEVER_WRITTEN = ("q", "k", "v", "do", "o")
_AXES = {"q": "bhmd", "k": "bgnd", "v": "bgne", "do": "bhme", "o": "bhme", "dq": "bhmd", "dk": "bgnd", "dv": "bgne"}
_AXES |= {"lse": "bhm", "delta": "bhm"}
_AXES |= dict.fromkeys(("bias", "mask", "p", "dp", "ds"), "bhmn")
# Letters of axes that one word for a stride's axis stands for.
_STRIDES = {"b": "b", "h": "hg", "m": "mn", "d": "de"}
# (letter, letter, what the two are the size of): of one number where the first of these letters has none of its own.
_ALIKE = (("m", "n", "length of queries and keys"), ("d", "e", "head dim"), ("h", "g", "number of heads"))
_BY_HAND = "call it from Python, through gradprobe.cuda.load"


class Meaning(NamedTuple):
    """What a parameter is passed: an input, output, scalar, size, stride or stream."""

    kind: str
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
    function = source.launchers.get(name)
    if function is None:
        way_out = did_you_mean(name, source.launchers, "it has") or "gradprobe.cuda.load calls kernels from Python"
        raise UsageFailure(f"target {word!r}: {file} has no function {name} that launches kernels", way_out)
    return _Backward(Launcher(source, function), meanings(function, word)).function(), function.line


def checkable(file: Path) -> list[str]:
    """The functions of a .cu file that can be checked as they stand, by name."""
    found = []
    for name, function in read_source(file).launchers.items():
        with contextlib.suppress(UsageFailure):
            meanings(function, name)
            found.append(name)
    return found


def no_launcher(file: Path, word: str) -> UsageFailure:
    """Why none of a file's functions can be checked."""
    for name, function in read_source(file).launchers.items():
        try:
            meanings(function, f"{file}:{name}")
        except UsageFailure as failure:
            return failure
    return UsageFailure(f"target {word!r}: {file} has no function that launches kernels", _BY_HAND)


def meanings(function: DeclaredFunction, word: str) -> dict[str, Meaning]:
    """What each parameter is passed, by its name; UsageFailure where a name means nothing here, or none is written."""
    pointers = [word_of(parameter.name) for parameter in function.parameters if parameter.type.endswith("*")]
    pointers += filter(None, [tensor_of(pointer) for pointer in pointers])
    found: dict[str, Meaning] = {}
    for parameter in function.parameters:
        meaning = _meaning(parameter, pointers)
        if meaning is None:
            words = f"target {word!r} needs a parameter {parameter.name!r} that gradprobe has no value for"
            raise UsageFailure(words, _BY_HAND)
        found[parameter.name] = meaning
    if all(meaning.kind != "output" for meaning in found.values()):
        raise UsageFailure(f"target {word!r} writes nothing that is an intermediate", "a backward writes dq, dk or dv")
    return found


def _meaning(parameter: Declaration, pointers: Sequence[str]) -> Meaning | None:
    name, kind = parameter.name, parameter.type
    if kind == STREAM:
        return Meaning("stream")
    if kind.endswith("*"):
        tensor = tensor_of(name)
        if tensor in _INPUTS and (parameter.is_const or tensor in _NEVER_WRITTEN):
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

        more = sorted({*self._named("input"), *self._named("scalar")})
        names = dict.fromkeys(("q", "k", "v", "do", *more))
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        backward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        backward.__name__ = backward.__qualname__ = self._name
        return backward

    def _run(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """Calls it once, or once for each batch or head that it is not told the number of.

        It raises ValueError, which refuses a layout, where it is not told of a stride or of a size that differs.
        """
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
        batches = [None] if "b" in self._whole else range(sizes["b"])
        heads = [None] if "h" in self._whole else range(sizes["h"])
        for batch, head in itertools.product(batches, heads):
            arguments: list[Any] = []
            for meaning in self._passed.values():
                if meaning.kind in ("input", "output"):
                    arguments.append(_part(meaning.what, tensors[meaning.what], sizes, batch, head))
                elif meaning.kind == "scalar":
                    arguments.append(given[meaning.what])
                elif meaning.kind == "size":
                    is_flat = meaning.what == "b" and "h" not in self._letters
                    axes = "bh" if is_flat else meaning.what
                    arguments.append(math.prod(sizes[axis] for axis in axes))
                elif meaning.kind == "stride":
                    arguments.append(_stride(meaning, tensors[meaning.what]))
            self._launcher(*arguments)
        return {title(name): tensors[name] for name in self._named("output")}

    def _outputs(self, q: Tensor, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """What it writes: zeros, since it may add to what it finds."""
        import torch

        found = {}
        for parameter in self._launcher.function.parameters:
            meaning = self._passed[parameter.name]
            if meaning.kind == "output":
                (taken,) = types_as_written(self._launcher.source, [parameter])
                dtype = {4: torch.float32, 8: torch.float64}.get(taken.of, q.dtype)
                shape = [sizes[axis] for axis in _AXES[meaning.what]]
                found[meaning.what] = torch.zeros(shape, dtype=dtype, device=q.device)
        return found

    def _laid(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of whose strides it is told, where the others follow; contiguous where it is told of none."""
        strides = [
            meaning.axis for meaning in self._passed.values() if (meaning.kind, meaning.what) == ("stride", name)
        ]
        if not strides:
            return tensor.contiguous()
        free = "".join(_STRIDES[axis] for axis in strides)
        # Of one batch or head at a time it is given the place.
        free += "".join(axis for axis in "bh" if axis not in self._whole).replace("h", "hg")
        due = 1
        for at in reversed(range(tensor.dim())):
            if _AXES[name][at] not in free and tensor.shape[at] > 1 and tensor.stride(at) != due:
                raise ValueError(f"{self._name} is not told of {name}.stride({at})")
            due = tensor.stride(at) * tensor.shape[at]
        return tensor


def _stride(meaning: Meaning, tensor: Tensor) -> int:
    for at, axis in enumerate(_AXES[meaning.what]):
        if axis in _STRIDES[meaning.axis]:
            return tensor.stride(at)
    return 0


def _part(name: str, tensor: Tensor, sizes: Mapping[str, int], batch: int | None, head: int | None) -> Tensor:
    """What of a tensor one call computes with; None: of all batches, or heads."""
    if head is not None:
        shared = sizes["h"] // sizes["g"] if _AXES[name][1] == "g" else 1
        tensor = tensor[:, head // shared]
    return tensor if batch is None else tensor[batch]
