"""Functions of the host in a .cu file as targets: what their parameters mean by name, and how they are called."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.failures import UsageFailure, did_you_mean
from ...model.intermediates import title
from ...source.parameter_names import is_stride, stride_of, tensor_of, word_of
from .cuda_syntax import DeclaredFunction, Parameter
from .kernel import STREAM, pointed_to
from .module import Launcher
from .source import Unit, launching_functions, read_source

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
_INPUTS = ("q", "k", "v", "do", "o", "lse", "delta", "bias", "mask")
_SCALARS = {"scale": "scale", "sm_scale": "scale", "softmax_scale": "scale"}
_SCALARS |= {"causal": "causal", "is_causal": "causal", "softcap": "softcap"}
_AXES = {"q": "bhmd", "k": "bgnd", "v": "bgne", "do": "bhme", "o": "bhme", "dq": "bhmd", "dk": "bgnd", "dv": "bgne"}
_AXES |= {"lse": "bhm", "delta": "bhm"} | dict.fromkeys(("bias", "mask", "p", "dp", "ds"), "bhmn")
# Letters of axes that one word for a stride's axis stands for.
_STRIDES = {"b": "b", "h": "hg", "m": "mn", "d": "de"}


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
    found = launching_functions(source.text)
    if name not in found:
        way_out = did_you_mean(name, found, "it has") or "gradprobe.cuda.load calls kernels from Python"
        raise UsageFailure(f"target {word!r}: {file} has no function {name} that launches kernels", way_out)
    return HostTarget(Launcher(Unit(source), found[name]), word).function(), found[name].line


def checkable(file: Path) -> list[str]:
    """The functions of a .cu file that can be checked as they stand, by name."""
    source, found = read_source(file), []
    for name, function in launching_functions(source.text).items():
        try:
            meanings(function, name)
        except UsageFailure:
            continue
        found.append(name)
    return found


def no_launcher(file: Path, word: str) -> UsageFailure:
    """Why none of a file's functions can be checked."""
    try:
        for name, function in launching_functions(read_source(file).text).items():
            meanings(function, f"{file}:{name}")
    except UsageFailure as failure:
        return failure
    words = f"target {word!r}: {file} has no function that launches kernels"
    return UsageFailure(words, "call them from Python, through gradprobe.cuda.load")


def meanings(function: DeclaredFunction, word: str) -> dict[str, Meaning]:
    """What each parameter is passed, by its name.

    Raises:
        UsageFailure: there is one whose name means nothing here, or nothing that it writes.
    """
    named = [word_of(one.name) for one in function.parameters if one.type.endswith("*")]
    pointers = [*named, *filter(None, map(tensor_of, named))]
    made: dict[str, Meaning] = {}
    for parameter in function.parameters:
        meaning = _meaning(parameter, pointers)
        if meaning is None:
            raise UsageFailure(
                f"target {word!r} needs a parameter {parameter.name!r} that gradprobe has no value for",
                "call it from Python, through gradprobe.cuda.load",
            )
        made[parameter.name] = meaning
    if not any(one.kind == "output" for one in made.values()):
        raise UsageFailure(f"target {word!r} writes nothing that is an intermediate", "a backward writes dq, dk or dv")
    return made


def _meaning(parameter: Parameter, pointers: Sequence[str]) -> Meaning | None:
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


class HostTarget:
    """A host function that is called with the tensors of a case."""

    def __init__(self, launcher: Launcher, word: str) -> None:
        self.launcher, self.meanings = launcher, meanings(launcher.function, word)
        self._name = launcher.function.name
        self._told = "".join(self._named("size"))
        # Of batches and heads, those that one call computes all of; told of batches alone, it takes heads for such.
        self._whole = "bh" if "b" in self._told else "h" if "h" in self._told else ""

    def _named(self, kind: str) -> list[str]:
        return [one.what for one in self.meanings.values() if one.kind == kind]

    def function(self) -> Any:
        """It as a Python function with the parameters of an attention's backward."""

        def backward(**given: Any) -> dict[str, Tensor]:
            return self._run(given)

        names = dict.fromkeys(("q", "k", "v", "do", *sorted({*self._named("input"), *self._named("scalar")})))
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        backward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        backward.__name__ = backward.__qualname__ = self._name
        return backward

    def _run(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """Calls it once, or once for each batch or head that it is not told the number of.

        Raises:
            ValueError: it is not told of a stride or a size in which the tensors differ from what it takes.
        """
        sizes = self._sizes(given)
        tensors = {name: self._laid(name, given[name]) for name in given if name in self._named("input")}
        for parameter in self.launcher.function.parameters:
            if (meaning := self.meanings[parameter.name]).kind == "output":
                tensors[meaning.what] = self._zeros(parameter, meaning.what, sizes, given["q"])
        each: list[Sequence[int | None]] = [[None] if axis in self._whole else range(sizes[axis]) for axis in "bh"]
        for batch, head in itertools.product(*each):
            here = {name: _part(name, tensor, sizes, batch, head) for name, tensor in tensors.items()}
            passed = (self._argument(one, given, here, tensors, sizes) for one in self.meanings.values())
            self.launcher(*(one for one in passed if one is not _NOTHING))
        return {title(name): tensors[name] for name in self._named("output")}

    def _argument(
        self,
        meaning: Meaning,
        given: Mapping[str, Any],
        here: Mapping[str, Tensor],
        tensors: Mapping[str, Tensor],
        sizes: Mapping[str, int],
    ) -> Any:
        """What one parameter is passed."""
        if meaning.kind in ("input", "output"):
            return here[meaning.what]
        if meaning.kind == "scalar":
            return given[meaning.what]
        if meaning.kind == "size":
            is_flat = meaning.what == "b" and "h" not in self._told
            return math.prod(sizes[axis] for axis in ("bh" if is_flat else meaning.what))
        if meaning.kind == "stride":
            axes = [at for at, axis in enumerate(_AXES[meaning.what]) if axis in _STRIDES[meaning.axis]]
            return tensors[meaning.what].stride(axes[0]) if axes else 0
        return _NOTHING

    def _sizes(self, given: Mapping[str, Any]) -> dict[str, int]:
        """By axis.

        Raises:
            ValueError: two differ for which it takes one number.
        """
        sizes = {axis: size for name in "qkv" for axis, size in zip(_AXES[name], given[name].shape, strict=True)}
        alike = [("m", "n", "length of queries and keys")] if "l" in self._told else []
        alike += [("d", "e", "head dim")] if "e" not in self._told else []
        alike += [("h", "g", "number of heads")] if "g" not in self._told else []
        for first, second, what in alike:
            if sizes[first] != sizes[second]:
                raise ValueError(f"{self._name} takes one {what}")
        return {**sizes, "l": sizes["m"]}

    def _zeros(self, parameter: Parameter, tensor: str, sizes: Mapping[str, int], like: Tensor) -> Tensor:
        """An output, of zeros, since it may add to what it finds."""
        import torch

        dtype = getattr(torch, pointed_to(self.launcher.unit, parameter.type), like.dtype)
        return torch.zeros([sizes[axis] for axis in _AXES[tensor]], dtype=dtype, device=like.device)

    def _laid(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of whose strides it is told; contiguous where it is told of none.

        Raises:
            ValueError: it is told of some, and another is not what follows from them.
        """
        told = "".join(_STRIDES[one.axis] for one in self.meanings.values() if (one.kind, one.what) == ("stride", name))
        if not told:
            return tensor.contiguous()
        due = 1
        for at in reversed(range(tensor.dim())):
            axis = _AXES[name][at].replace("g", "h")
            is_free = _AXES[name][at] in told or (axis in "bh" and axis not in self._whole)
            if not is_free and tensor.shape[at] > 1 and tensor.stride(at) != due:
                raise ValueError(f"{self._name} is not told of {name}.stride({at})")
            due = tensor.stride(at) * tensor.shape[at]
        return tensor


_NOTHING = object()


def _part(name: str, tensor: Tensor, sizes: Mapping[str, int], batch: int | None, head: int | None) -> Tensor:
    """What of a tensor one call computes with; None: of all batches, or heads."""
    if head is not None:
        shared = sizes["h"] // sizes["g"] if _AXES[name][1] == "g" else 1
        tensor = tensor[:, head // shared]
    return tensor if batch is None else tensor[batch]
