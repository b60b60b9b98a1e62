"""What a process with torch, Triton and a target imported tells of them, without running a kernel."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...frontends import replaced
from ...inputs.versions import installed_versions, triton_cache, untested
from ...model.assignment import TENSORS
from ...targets.naming import source_of
from .ladder import TargetTraits
from .loaded_files import LoadedFile, kernels_of, loaded_file

if TYPE_CHECKING:
    from ...frontends.triton.launches import KernelCall
    from ...inputs.tensor_layouts import Inputs
    from ...pipeline.resolve import Problem

_TILE = 32
_LIBRARIES = ("gradprobe", "torch", "triton", "numpy")
_PREFIXES = (
    *("TRITON_", "CUDA_", "NVIDIA_TF32_", "CUBLAS_"),
    *("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "GRADPROBE_"),
)


@dataclass(frozen=True)
class MachineSurvey:
    backend: str
    """Where kernels run: "cuda" or "cpu"."""
    gpu: str
    """Its name and memory; "" where there is none."""
    files: tuple[LoadedFile, ...]
    """Those of the target and of its kernels; without a target those of the libraries."""
    built: TargetTraits | None = None


def facts_here() -> dict[str, Any]:
    """What the process that was typed knows without torch: versions, and what may change which code runs."""
    variables = {name: word for name, word in os.environ.items() if name.startswith(_PREFIXES)}
    facts = {"versions": installed_versions(), "untested": untested()}
    return facts | {"cache": triton_cache(), "variables": dict(sorted(variables.items()))}


def survey_machine(device: str) -> MachineSurvey:
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    found = [loaded_file(spec.name, spec.origin) for spec in specs if spec and spec.origin]
    return MachineSurvey(device, _gpu(), tuple(filter(None, found)))


def survey_target(problem: Problem) -> MachineSurvey:
    from ...probing.experiment import experiment_of, inputs_of

    case, target = problem.case, problem.target
    inputs = inputs_of(experiment_of(case, target), ())
    calls, launched = _launched(problem, inputs)
    given = [name for name in TENSORS if name in inputs.tensors]
    tensors = tuple(name for name in given if not name.startswith(("seqlens", "cu_")))
    tile = max((size for call in calls for size in _tiles(call)), default=_TILE)
    built = TargetTraits(target.family, tensors, tile)
    return MachineSurvey(case.device, _gpu(), tuple(_files(problem, launched)), built)


def _launched(problem: Problem, inputs: Inputs) -> tuple[list[KernelCall], dict[str, list[str]]]:
    """The launches of a call in which no kernel runs; and by file the names of the kernels that it launches."""
    from ...cuda import Kernel
    from ...frontends import Launches
    from ...frontends.triton.launches import recorded_launches
    from ...runtime.run import run_target

    found: dict[str, list[str]] = {}

    def call(kernel: Kernel, *_: Any) -> None:
        found.setdefault(str(kernel.source.path), []).append(kernel.function.name)

    with contextlib.suppress(ImportError):  # what has not been imported is not recorded
        importlib.import_module("triton")
    record = Launches()
    with contextlib.ExitStack() as stack:
        stack.enter_context(recorded_launches(record, runs=False))
        stack.enter_context(replaced(Kernel, "__call__", call))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        stack.enter_context(contextlib.suppress(Exception))  # the rungs will tell what it takes
        run_target(problem.target, problem.case, inputs)
    for launch in record.started:
        found.setdefault(source_of(launch.entry).file, []).append(launch.call.name)
    return [launch.call for launch in record.started], found


def _files(problem: Problem, launched: dict[str, list[str]]) -> Iterator[LoadedFile]:
    source, word = problem.target.source, problem.request.target.rpartition(":")[0]
    known = kernels_of(list(sys.modules.values()))
    modules = {file: known[file][0].fn.__module__ for file in launched if file in known}
    own = {source.file: getattr(problem.target.function, "__module__", "")}
    for file, module in (own | modules | own).items():
        named = os.path.realpath(word) == file
        if found := loaded_file(module, file, named=named, kernels=known.get(file, ())):
            ran = tuple(name for name in found.kernels if name in launched.get(file, ()))
            yield replace(found, kernels=ran or found.kernels)
    for file, names in launched.items():
        if not file.endswith(".py"):
            kernels, why = tuple(dict.fromkeys(names)), "as its host loads it"
            yield LoadedFile.of(Path(file).resolve(), module="", why=why, kernels=kernels)


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
    free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
    major, minor = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    return f"{name}, sm_{major}{minor}, {total:.0f} GiB, {free:.0f} GiB free"
