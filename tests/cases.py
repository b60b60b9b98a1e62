"""Cases for tests, resolved as the command line would."""

from typing import Any

from gradprobe.model.case import Case
from gradprobe.model.resolution import resolve
from gradprobe.runtime.backend import make_interpreter_right, prepare_backend


def lazy_case(**options: Any) -> Case:
    """A case of the lazy family on whatever this machine runs kernels on."""
    return _resolved("lazy", options)


def softmax_case(**options: Any) -> Case:
    """The same of the softmax family."""
    return _resolved("softmax", options)


def _resolved(family: str, options: dict[str, Any]) -> Case:
    device = prepare_backend(options.pop("device", "auto"))
    case = resolve({**options, "device": device}, family, takes_bias=True)
    make_interpreter_right(case)
    return case
