"""Cases for tests, resolved as the command line would."""

from __future__ import annotations

from typing import Any

from gradprobe.cases.case import Case, resolve
from gradprobe.running.backend import make_interpreter_right, prepare_backend


def lazy_case(**options: Any) -> Case:
    """A case of the lazy family on whatever this machine runs kernels on."""
    device = prepare_backend(options.pop("device", "auto"))
    case = resolve({**options, "device": device}, "lazy", takes_bias=True)
    make_interpreter_right(case)
    return case
