"""What a process with torch, Triton and a target imported tells of them, without running a kernel."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import marshal
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...frontends import replaced
from ...inputs.versions import installed_versions, triton_cache, untested
from ...model.assignment import TENSORS
from ...targets.naming import source_of
from .ladder import TargetTraits

if TYPE_CHECKING:
    from ...frontends import Launch
    from ...inputs.tensor_layouts import Inputs
    from ...pipeline.resolve import Problem

_TILE = 32
_LIBRARIES = ("gradprobe", "torch", "triton", "numpy")
_PREFIXES = (
    *("TRITON_", "CUDA_", "NVIDIA_TF32_", "CUBLAS_"),
    *("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "GRADPROBE_"),
)


@dataclass(frozen=True)
class LoadedFile:
    file: str
    sha256: str
    modified: float
    stale: tuple[str, ...] = ()
    """What of it runs otherwise than it stands there now."""


@dataclass(frozen=True)
class MachineSurvey:
    backend: str
    """Where kernels run: "cuda" or "cpu"."""
    gpu: str
    """Its name and memory; "" where there is none."""
    files: tuple[LoadedFile, ...]
    """Those of the target and of its Triton kernels; without a target those of the libraries."""
    built: TargetTraits | None = None


def facts_here() -> dict[str, Any]:
    """What the process that was typed knows without torch: versions, and what may change which code runs."""
    variables = {name: word for name, word in os.environ.items() if name.startswith(_PREFIXES)}
    facts = {"versions": installed_versions(), "untested": untested()}
    return facts | {"cache": triton_cache(), "variables": dict(sorted(variables.items()))}


def survey_machine(device: str) -> MachineSurvey:
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    files = [loaded_file(spec.origin) for spec in specs if spec and spec.origin]
    return MachineSurvey(device, _gpu(), tuple(files))


def survey_target(problem: Problem) -> MachineSurvey:
    from ...probing.experiment import experiment_of, inputs_of

    case, target = problem.case, problem.target
    inputs = inputs_of(experiment_of(case, target), ())
    launched = _launched(problem, inputs)
    tile = max((tile_of(one.call.constants) for one in launched), default=0) or _TILE
    given = [name for name in TENSORS if name in inputs.tensors]
    tensors = tuple(name for name in given if not name.startswith(("seqlens", "cu_")))
    files = [target.source.file, *(source_of(one.entry).file for one in launched)]
    loaded = [loaded_file(file) for file in dict.fromkeys(files) if os.path.isfile(file)]
    built = TargetTraits(target.family, tensors, tile)
    return MachineSurvey(case.device, _gpu(), tuple(loaded), built)


def _launched(problem: Problem, inputs: Inputs) -> list[Launch]:
    """The launches of Triton kernels in a call in which no kernel runs."""
    from ...cuda import Kernel
    from ...frontends import Launches
    from ...frontends.triton.launches import recorded_launches
    from ...runtime.run import run_target

    record = Launches()
    with contextlib.suppress(ImportError):  # what has not been imported is not recorded
        importlib.import_module("triton")
    with (
        recorded_launches(record, runs=False),
        replaced(Kernel, "__call__", lambda *_: None),
        contextlib.redirect_stdout(sys.stderr),
        contextlib.suppress(Exception),  # the rungs will tell what it takes
    ):
        run_target(problem.target, problem.case, inputs)
    return record.started


def tile_of(constants: dict[str, Any]) -> int:
    """The largest size of a launch's tiles along rows and keys, as their names tell; 0 where they do not."""
    name = re.compile(r"BLOCK(?!.*(D$|DV$|DIM|DMODEL))", re.IGNORECASE)
    named = [size for each, size in constants.items() if name.match(each)]
    return max((size for size in named if type(size) is int), default=0)


def loaded_file(file: str) -> LoadedFile:
    path = Path(file).resolve()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return LoadedFile(str(path), digest, path.stat().st_mtime, tuple(stale_bytecode(path)))


def stale_bytecode(file: Path) -> Iterator[str]:
    """A sentence where Python takes the compiled file in __pycache__ for up to date, and it is of another text."""
    if file.suffix != ".py":
        return
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
