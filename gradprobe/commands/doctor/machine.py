"""What can be told of a machine from outside: versions, variables in force, and NVIDIA's own words on its GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from ...inputs.history import installed_versions
from ...runtime.versions import InstalledPackage, tested

_PREFIXES = ("TRITON_", "CUDA_", "NVIDIA_TF32_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "CUBLAS_", "GRADPROBE_")
# What changes which code runs, or how it computes.
MATTERS: Mapping[str, str] = {
    "TRITON_INTERPRET": "1: every Triton kernel is interpreted, and none is compiled",
    "TRITON_KERNEL_OVERRIDE": "1: Triton runs what lies in its override folder in place of what it compiles",
    "TRITON_F32_DEFAULT": "the precision of float32 dots that do not ask for one",
    "NVIDIA_TF32_OVERRIDE": "0 or 1: TF32 off or on in all of NVIDIA's libraries",
    "CUDA_VISIBLE_DEVICES": "which GPUs torch sees",
}
_SECONDS = 10.0
_ASKED = "name,memory.total,memory.used,clocks.sm,clocks.max.sm,clocks.mem,driver_version"
_TOLD = "{}: {} of memory, {} in use; clock {} of at most {}, of the memory {}; driver {}"


@dataclass(frozen=True)
class Machine:
    """What was found."""

    versions: Mapping[str, str]
    tested: tuple[InstalledPackage, ...]
    variables: Mapping[str, str]
    smi: str
    """A line of nvidia-smi on each GPU; "" where there is none."""

    @property
    def untested(self) -> tuple[InstalledPackage, ...]:
        """What has another version than any that gradprobe was tested with."""
        return tuple(one for one in self.tested if not one.holds)


def machine() -> Machine:
    """This one. Neither torch nor Triton is imported."""
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)}
    return Machine(installed_versions(), tested(), variables, _smi())


def _smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    words = [program, f"--query-gpu={_ASKED}", "--format=csv,noheader"]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "\n".join(map(_in_words, ran.stdout.strip().splitlines())) if ran.returncode == 0 else ""


def _in_words(line: str) -> str:
    parts = line.split(", ")
    return _TOLD.format(*parts) if len(parts) == len(_ASKED.split(",")) else line
