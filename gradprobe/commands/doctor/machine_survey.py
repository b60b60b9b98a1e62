"""Survey: what a process with torch, Triton and a target imported tells of them, without running a kernel."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import marshal
import os
import re
import site
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...frontends import replaced
from ...inputs.versions import installed_versions, triton_cache, untested
from ...model.assignment import TENSORS
from ...targets.naming import found_in, shadows, source_of
from .ladder import TargetTraits

if TYPE_CHECKING:
    from typing_extensions import Self

    from ...inputs.tensor_layouts import Inputs
    from ...pipeline.resolve import Problem

_TILE = 32
_LIBRARIES = ("gradprobe", "torch", "triton", "numpy")
_PREFIXES = (
    *("TRITON_", "CUDA_", "NVIDIA_TF32_", "CUBLAS_"),
    *("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "GRADPROBE_"),
)
# Where projects keep their packages, which an install that is not editable copies.
_OF_PROJECTS = ("src", "python", "lib")


@dataclass(frozen=True)
class FileText:
    file: str
    sha256: str
    modified: float

    @classmethod
    def of(cls, file: Path, **more: Any) -> Self:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return cls(str(file), digest, file.stat().st_mtime, **more)


@dataclass(frozen=True)
class LoadedFile(FileText):
    module: str
    why: str
    """Why this one and no other is imported."""
    copies: tuple[FileText, ...] = ()
    """Files of other text that Python would import if the search path had another order."""
    stale: tuple[str, ...] = ()
    """What of it runs otherwise than it stands there now."""
    kernels: tuple[str, ...] = ()
    """Those that were launched."""


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
    files = [loaded_file(spec.origin, spec.name) for spec in specs if spec and spec.origin]
    return MachineSurvey(device, _gpu(), tuple(files))


def survey_target(problem: Problem) -> MachineSurvey:
    from ...probing.experiment import experiment_of, inputs_of

    case, target = problem.case, problem.target
    inputs = inputs_of(experiment_of(case, target), ())
    launched = _launched(problem, inputs)
    given = [name for name in TENSORS if name in inputs.tensors]
    tensors = tuple(name for name in given if not name.startswith(("seqlens", "cu_")))
    tile = max((one.tile for one in launched), default=0) or _TILE
    built = TargetTraits(target.family, tensors, tile)
    return MachineSurvey(case.device, _gpu(), tuple(_files(problem, launched)), built)


@dataclass(frozen=True)
class _LaunchedKernel:
    file: str
    module: str
    name: str
    tile: int = 0


def _launched(problem: Problem, inputs: Inputs) -> list[_LaunchedKernel]:
    """The launches of a call in which no kernel runs."""
    from ...cuda import Kernel
    from ...frontends import Launches
    from ...frontends.triton.launches import recorded_launches
    from ...runtime.run import run_target

    found, record = list[_LaunchedKernel](), Launches()

    def call(kernel: Kernel, *_: Any) -> None:
        found.append(_LaunchedKernel(str(kernel.source.path), "", kernel.function.name))

    with contextlib.suppress(ImportError):  # what has not been imported is not recorded
        importlib.import_module("triton")
    with contextlib.ExitStack() as stack:
        stack.enter_context(recorded_launches(record, runs=False))
        stack.enter_context(replaced(Kernel, "__call__", call))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        stack.enter_context(contextlib.suppress(Exception))  # the rungs will tell what it takes
        run_target(problem.target, problem.case, inputs)
    for launch in record.started:
        file, module = source_of(launch.entry).file, launch.entry.__module__
        tile = tile_of(launch.call.constants)
        found.append(_LaunchedKernel(file, module, launch.call.name, tile))
    return found


def tile_of(constants: dict[str, Any]) -> int:
    """The largest size of a launch's tiles along rows and keys, as their names tell; 0 where they do not."""
    sizes = [0]
    for name, size in constants.items():
        if re.match(r"BLOCK(?!.*(D$|DV$|DIM|DMODEL))", name.upper()) and type(size) is int:
            sizes.append(size)
    return max(sizes)


def _files(problem: Problem, launched: Sequence[_LaunchedKernel]) -> Iterator[LoadedFile]:
    own, target = problem.target.source.file, problem.target.function
    modules = {own: getattr(target, "__module__", "")}
    kernels: dict[str, dict[str, None]] = {own: {}}
    for kernel in launched:
        modules.setdefault(kernel.file, kernel.module)
        kernels.setdefault(kernel.file, {})[kernel.name] = None
    named = os.path.realpath(problem.request.target.rpartition(":")[0])
    for file, module in modules.items():
        if os.path.isfile(file):
            yield loaded_file(file, module, is_named=named == file, kernels=tuple(kernels[file]))


def loaded_file(
    file: str, module: str, *, is_named: bool = False, kernels: tuple[str, ...] = ()
) -> LoadedFile:
    """What is known of a file that is there.

    Args:
        is_named: whether the file itself was named, and not a module.
    """
    path, module = Path(file).resolve(), module.replace("gradprobe_target_", "")
    if path.suffix != ".py":
        return LoadedFile.of(path, module="", why="as its host loads it", kernels=kernels)
    beside = [*site.getsitepackages(), site.getusersitepackages()]
    beside += map(os.path.abspath, _OF_PROJECTS)
    own, copies = FileText.of(path), list[FileText]()
    for other in shadows(module, path, beside):
        copy = FileText.of(Path(other))
        if copy.sha256 != own.sha256:
            copies.append(copy)
    return LoadedFile.of(
        path,
        module=module,
        why="the file that was named" if is_named else why_imported(module, path),
        copies=tuple(copies),
        stale=tuple(stale_bytecode(path)),
        kernels=kernels,
    )


def why_imported(module: str, file: Path) -> str:
    """Why Python imports this file under a module's name: the entry of its search path."""
    for number, entry in enumerate(sys.path, 1):
        if found_in(entry or os.getcwd(), module) == file:
            root, here = Path(entry).resolve(), Path.cwd().resolve()
            folder = "the current folder" if root == here else str(root)
            return f"{folder}, place {number} of {len(sys.path)} on the search path"
    return "an import hook: it is not on the search path"


def stale_bytecode(file: Path) -> Iterator[str]:
    """A sentence where Python takes the compiled file in __pycache__ for up to date, and it is of another text."""
    kept = Path(importlib.util.cache_from_source(str(file)))
    try:
        raw = kept.read_bytes()
        # An older release may have compiled the same text otherwise.
        is_own = kept.stat().st_mtime >= os.stat(os.__file__).st_ctime
        if raw[:4] != importlib.util.MAGIC_NUMBER or not is_own or not _is_taken(raw, file):
            return
        runs = marshal.loads(raw[16:])
        stands = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    except (OSError, ValueError, EOFError, TypeError, SyntaxError):
        return
    if runs != stands:
        place = os.path.relpath(kept.parent)
        yield f"Python runs a stale compiled file, not what {file.name} holds now: delete it in {place}"


def _is_taken(raw: bytes, file: Path) -> bool:
    """Whether Python's import takes a compiled file without looking into the source (PEP 552)."""
    flags, *stamp = (int.from_bytes(raw[at : at + 4], "little") for at in (4, 8, 12))
    if flags & 1:
        return not flags & 2  # a hash that is not checked
    stat = file.stat()
    return stamp == [int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF]


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return ""
    free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
    major, minor = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    return f"{name}, sm_{major}{minor}, {total:.0f} GiB, {free:.0f} GiB free"
