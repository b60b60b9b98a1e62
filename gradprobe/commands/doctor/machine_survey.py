"""MachineSurvey: what a process with torch, Triton and a target imported tells of them, without running a kernel."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...frontends import replaced
from ...inputs.versions import installed_versions, triton_folder, untested
from ...model.assignment import TENSORS
from ...targets.naming import source_of
from .ladder import TargetTraits
from .module_copies import LoadedFile, cuda_file, kernels_of, loaded_file, origin_of

if TYPE_CHECKING:
    from torch import Tensor

    from ...frontends.triton.launches import KernelCall
    from ...pipeline.resolve import Problem

_Launched = dict[str, dict[str, None]]

_TILE = 32
_LIBRARIES = ("gradprobe", "torch", "triton", "numpy")
_PREFIXES = (
    *("TRITON_", "CUDA_", "NVIDIA_TF32_", "CUBLAS_"),
    *("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "GRADPROBE_"),
)


def variables_here() -> dict[str, str]:
    """What is set that may change which code runs, or how it computes."""
    names = [name for name in sorted(os.environ) if name.startswith(_PREFIXES)]
    return {name: os.environ[name] for name in names}


@dataclass(frozen=True)
class MachineSurvey:
    backend: str
    """Where kernels run: "cuda" or "cpu"."""
    gpu: str
    """Its name and memory; "" where there is none."""
    files: tuple[LoadedFile, ...]
    """Those of the target and of its kernels; without a target those of the libraries."""
    built: TargetTraits | None = None
    cache: str = field(default_factory=lambda: str(triton_folder()))
    versions: dict[str, str] = field(default_factory=installed_versions)
    untested: str = field(default_factory=untested)
    """Which versions gradprobe is not tested with; "" where it is with all."""
    variables: dict[str, str] = field(default_factory=dict)
    """Those of the process that was typed."""


def survey_machine(device: str) -> MachineSurvey:
    """The survey of this process, in which kernels run on "cpu" or "cuda"."""
    found = (loaded_file(name, origin_of(name)) for name in _LIBRARIES)
    return MachineSurvey(device, _gpu(), tuple(one for one in found if one is not None))


def survey_target(problem: Problem) -> MachineSurvey:
    """The survey of this process, which has imported a target."""
    values = _values_of(problem)
    calls, launched = _launched(problem, values)
    given = [name for name in TENSORS if name in values]
    tensors = tuple(name for name in given if not name.startswith(("seqlens", "cu_")))
    tile = max((size for call in calls for size in _tiles(call)), default=_TILE)
    built = TargetTraits(problem.target.family, tensors, tile)
    return MachineSurvey(problem.case.device, _gpu(), tuple(_files(problem, launched)), built)


def _values_of(problem: Problem) -> dict[str, Tensor]:
    """Values of a case, contiguous, on its device. O, LSE and delta hold no more than numbers of their shapes."""
    import torch

    from ...inputs.draw import draw, outputs_of
    from ...model.intermediates import DERIVED

    case, target = problem.case, problem.target
    values = draw(case)
    for name in DERIVED:
        if name in target.takes:
            dtype = values["q"].dtype if name == "o" else torch.float32
            shape = [case.size(axis) for axis in case.input_axes(name)]
            values[name] = torch.ones(shape, dtype=dtype)
    values = {name: value.to(case.device) for name, value in values.items()}
    return {**values, **outputs_of(case, target.outputs, values, 0.0)}


def _launched(problem: Problem, values: dict[str, Tensor]) -> tuple[list[KernelCall], _Launched]:
    """The launches of a call in which no kernel runs; and by file the names of the kernels that it launches."""
    from ...cuda import Kernel
    from ...frontends import Launches
    from ...frontends.triton.launches import recorded_launches
    from ...inputs.tensor_layouts import place
    from ...runtime.run import run_target

    found: _Launched = {}

    def call(kernel: Kernel, *_: Any) -> None:
        found.setdefault(str(kernel.source.path), {})[kernel.function.name] = None

    with contextlib.suppress(ImportError):  # what has not been imported is not recorded
        importlib.import_module("triton")
    record = Launches()
    with contextlib.ExitStack() as stack:
        stack.enter_context(recorded_launches(record, runs=False))
        stack.enter_context(replaced(Kernel, "__call__", call))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        with contextlib.suppress(Exception):  # the rungs will tell what it takes
            inputs = place(values, (), shapes=problem.case.shapes)
            run_target(problem.target, problem.case, inputs)
    for launch in record.started:
        found.setdefault(source_of(launch.entry).file, {})[launch.call.name] = None
    return [launch.call for launch in record.started], found


def _files(problem: Problem, launched: _Launched) -> Iterator[LoadedFile]:
    """The target's file, then those of the kernels that it launches."""
    source, word = problem.target.source, problem.request.target.rpartition(":")[0]
    kernels = kernels_of(list(sys.modules.values()))
    modules = {source.file: getattr(problem.target.function, "__module__", "")}
    for file in launched:
        if file in kernels and file != source.file:
            modules[file] = kernels[file][0].fn.__module__
    for file, module in modules.items():
        named = os.path.realpath(word) == file
        if found := loaded_file(module, file, named=named, kernels=kernels.get(file, ())):
            own = tuple(name for name in found.kernels if name in launched.get(file, ()))
            yield replace(found, kernels=own or found.kernels)
    for file, names in launched.items():
        if not file.endswith(".py"):
            yield cuda_file(file, tuple(names))


def _tiles(call: KernelCall) -> list[int]:
    """The sizes of a launch's tiles along rows and keys, as their names tell."""
    found = []
    for name, size in call.constants.items():
        if re.match(r"BLOCK(?!.*(D$|DV$|DIM|DMODEL))", name.upper()) and type(size) is int:
            found.append(size)
    return found


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    major, minor = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    return f"{name}, sm_{major}{minor}, {total / 2**30:.0f} GiB, {free / 2**30:.0f} GiB free"
