"""MachineSurvey: what a process with torch, Triton and a target imported tells of them, without running a kernel."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...model.assignment import TENSORS
from .ladder import Built
from .module_copies import LoadedFile, cuda_file, kernels_of, loaded_file, origin_of

if TYPE_CHECKING:
    from ...lint.catching import HostLaunch
    from ...pipeline.resolve import Problem

_TILE = 32
_LIBRARIES = ("gradprobe", "torch", "triton", "numpy")


@dataclass(frozen=True)
class MachineSurvey:
    """What was seen."""

    backend: str
    """Where kernels run: "cuda" or "cpu"."""
    tf32: str
    """What torch and Triton do with float32 dots, in words."""
    gpu: str
    """Its name and memory; "" where there is none."""
    mended: tuple[str, ...]
    """What of Triton's interpreter gradprobe mends."""
    files: tuple[LoadedFile, ...]
    """Those of the target and of its kernels; without a target those of the libraries."""
    built: Built | None = None


def survey_machine(device: str) -> MachineSurvey:
    """The survey of this process, in which kernels run on "cpu" or "cuda"."""
    return MachineSurvey(device, _tf32(), _gpu(), _mended() if device == "cpu" else (), _libraries())


def survey_target(problem: Problem) -> MachineSurvey:
    """The survey of this process, which has imported a target."""
    device = problem.case.device
    built, files = _of_target(problem)
    return MachineSurvey(device, _tf32(), _gpu(), _mended() if device == "cpu" else (), files, built)


def _libraries() -> tuple[LoadedFile, ...]:
    found = (loaded_file(name, origin_of(name)) for name in _LIBRARIES)
    return tuple(one for one in found if one is not None)


def _of_target(problem: Problem) -> tuple[Built, tuple[LoadedFile, ...]]:
    from ...lint.catching import catch, values_of

    target, case = problem.target, problem.case
    launches: list[HostLaunch] = []
    with contextlib.suppress(Exception), contextlib.redirect_stdout(sys.stderr):  # its rungs will tell what it takes
        caught = catch(target, case)
        launches = [*caught.launches] if caught is not None else []
    given = values_of(target, case)
    tensors = tuple(name for name in TENSORS if name in given and not name.startswith(("seqlens", "cu_")))
    tiles = [size for launch in launches for size in _tiles(launch)]
    return Built(target.family, tensors, max(tiles, default=_TILE)), tuple(_files(problem, launches))


def _files(problem: Problem, launches: Sequence[HostLaunch]) -> Iterator[LoadedFile]:
    """The target's file, then those of the kernels that it launches."""
    source, word = problem.target.source, problem.request.target.rpartition(":")[0]
    kernels, launched = kernels_of(list(sys.modules.values())), dict[str, dict[str, None]]()
    for launch in launches:
        launched.setdefault(launch.file, {})[launch.name] = None
    modules = {source.file: getattr(problem.target.function, "__module__", "")}
    modules |= {file: kernels[file][0].fn.__module__ for file in launched if file in kernels and file != source.file}
    for file, module in modules.items():
        named = os.path.realpath(word) == file
        if found := loaded_file(module, file, named=named, kernels=kernels.get(file, ())):
            own = tuple(name for name in found.kernels if name in launched.get(file, ()))
            yield replace(found, kernels=own or found.kernels)
    yield from (cuda_file(file, tuple(names)) for file, names in launched.items() if not file.endswith(".py"))


def _tiles(launch: HostLaunch) -> list[int]:
    """The sizes of a launch's tiles along rows and keys, as their names tell."""
    names = [name for name in launch.constants if re.match(r"BLOCK(?!.*(D$|DV$|DIM|DMODEL))", name.upper())]
    sizes = [launch.arguments.get(name) for name in names]
    return [size for size in sizes if isinstance(size, int) and not isinstance(size, bool)]


def _tf32() -> str:
    import torch

    words = f"torch: matmul {_on(torch.backends.cuda.matmul)}, cuDNN {_on(torch.backends.cudnn)}"
    return f"{words}; compiled Triton: float32 dots are TF32 unless a kernel asks for another input_precision"


def _on(setting: Any) -> str:
    try:
        return "on" if setting.allow_tf32 else "off"
    except RuntimeError:  # both of torch's names for it were set, and it does not say which counts
        return "set twice"


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    major, minor = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    return f"{name}, sm_{major}{minor}, {total / 2**30:.0f} GiB, {free / 2**30:.0f} GiB free"


def _mended() -> tuple[str, ...]:
    """What gradprobe mends in this release's interpreter."""
    from ...model.resolution import resolve
    from ...runtime.backend import make_interpreter_right

    make_interpreter_right(resolve({"dtype": "bfloat16", "device": "cpu"}, "softmax", takes_bias=False))
    return ("bfloat16, which it computes on the bits", "scalars and bools", "operations that are worked out each time")
