"""What is mutated: the file and function that a target names, read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...inputs.history import CheckRequest
from ...model.failures import Failure, TargetFailure, UsageFailure
from ...processes import run_each
from ...source.kernel_file import KernelFile
from ..suite.takes import DESCRIBER, TargetSignature


def read_file(path: Path, function: str | None) -> KernelFile:
    """Reads a file of kernels.

    Args:
        function: whose kernels are meant, as in `KernelFile`.

    Raises:
        UsageFailure: there is none, it is no Python file, or holds no Triton kernel.
        TargetFailure: it is no Python.
    """
    file = KernelFile(str(path), _text_of(path), function)
    try:
        kernels = file.kernels
    except (SyntaxError, ValueError) as error:
        raise TargetFailure(f"{path} is not Python: {error}") from error
    if not kernels:
        what = f"{path} holds no Triton kernel" + (
            f" that {function} reaches" if function else ""
        )
        raise UsageFailure(
            f"{what}; faults are planted in Triton kernels",
            "name the file that holds them: --file KERNELS.py",
        )
    return file


def _text_of(path: Path) -> str:
    if path.suffix in (".cu", ".cuh", ".cpp", ".h"):
        raise UsageFailure(f"{path}: faults are planted in Triton kernels, not yet in CUDA C++")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageFailure(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageFailure(f"{path} is not written in UTF-8") from error


@dataclass(frozen=True)
class Subject:
    """Where faults are planted."""

    file: Path
    function: str | None
    """Whose kernels are meant; None for all of the file's."""


def subject_of(request: CheckRequest, file: str | None) -> Subject:
    """The file that faults are planted in.

    Args:
        file: named on the command line; the whole of it is meant, unless the target's function lies in it.

    Raises:
        UsageFailure, TargetFailure: the target is not there, or cannot be imported.
    """
    if request.target.endswith(".py"):  # a file alone
        return Subject(Path(file or request.target), None)
    (ended,) = run_each(DESCRIBER, str(request.options.get("device", "auto")), [request])
    if ended.raised is not None:
        raise ended.raised.failure
    if ended.crash is not None:
        raise Failure(
            f"target {request.target!r} was {ended.crash.words} at its import{ended.crash.where}"
        )
    found: TargetSignature = ended.result  # type: ignore[assignment]
    if file is not None and Path(file).resolve() != Path(found.file).resolve():
        return Subject(Path(file), None)
    if not found.file:
        raise UsageFailure(
            f"target {request.target!r} has no Python source", "name a file: --file KERNELS.py"
        )
    return Subject(Path(found.file), found.function)
