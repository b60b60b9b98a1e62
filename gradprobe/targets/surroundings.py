"""What a target made of its process: in force while it runs, and for nobody else."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Whose functions judge a target. What it replaces there is put back wherever it does not run itself.
_SPACES = (
    "builtins", "math", "numpy", "torch", "torch.autograd", "torch.cuda", "torch.linalg", "torch.nn.functional",
    "torch.special", "torch.Tensor",
)  # fmt: skip
_ABSENT = object()
_MOST_NAMED = 4
# Descriptors 1 and 2 as they were, for a target that closes them: what is opened next would be written to.
_KEPT: dict[int, int] = {}


@dataclass(frozen=True)
class _Setting:
    """Something that holds for a process as a whole."""

    get: Callable[[], Any]
    put: Callable[[Any], object]
    words: str = ""
    """What it is; "" where it changes no result."""
    stays: bool = True
    """Whether what a target left is in force again when it runs again."""


@dataclass
class Surroundings:
    """What one target made of its process, at its import and in its calls."""

    _left: dict[str, Any] = field(default_factory=dict)
    _replaced: dict[tuple[str, str], Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """While open, all is as the target left it; afterwards as it was before, for those who judge it."""
        settings = _settings()
        _keep_standard_streams()
        values, functions = {name: one.get() for name, one in settings.items()}, _functions()
        _put(settings, {name: value for name, value in self._left.items() if settings[name].stays})
        _replace(self._replaced)
        try:
            yield
        finally:
            self._replaced = _changed(functions)
            _replace({(space, name): functions[space].get(name, _ABSENT) for space, name in self._replaced})
            now = {name: one.get() for name, one in settings.items()}
            self._left = {name: value for name, value in now.items() if value != values[name]}
            _put(settings, {name: values[name] for name in self._left})
            _open_standard_streams()

    @property
    def words(self) -> str:
        """What the target left changed, as far as it could change a result; "" where nothing could."""
        # torch replaces some of its own, when parts of it are first used.
        named = sorted(
            f"{space}.{name}" for (space, name), value in self._replaced.items()
            if str(getattr(value, "__module__", "")).partition(".")[0] != "torch"
        )  # fmt: skip
        more = [f"{len(named) - _MOST_NAMED} functions more"] if len(named) > _MOST_NAMED else []
        return ", ".join([*named[:_MOST_NAMED], *more, *(words for name in self._left if (words := _words(name)))])


def _words(name: str) -> str:
    return _settings()[name].words


def _settings() -> Mapping[str, _Setting]:
    import numpy as np
    import torch

    return {
        "modes": _Setting(_modes, _put_modes, "the default device or another mode of torch"),
        "dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype, "the default dtype"),
        "gradients": _Setting(torch.is_grad_enabled, torch.set_grad_enabled, "whether gradients are recorded"),
        "autocast": _Setting(_autocast, _put_autocast, "autocast"),
        "algorithms": _Setting(_algorithms, _put_algorithms, "deterministic algorithms"),
        "threads": _Setting(torch.get_num_threads, torch.set_num_threads),
        "recursion": _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
        "folder": _Setting(_folder, _put_folder),
        "streams": _Setting(lambda: (sys.stdout, sys.stderr), _put_streams),
        # Around a target's calls both are set anyway.
        "warnings": _Setting(lambda: list(warnings.filters), _put_filters, stays=False),
        "numbers": _Setting(np.geterr, lambda value: np.seterr(**value), stays=False),
    }


def _put(settings: Mapping[str, _Setting], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        settings[name].put(value)


def _modes() -> tuple[Any, ...]:
    """What every call of torch passes through, and which of it is the default device."""
    import torch
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils import _device
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return (
        tuple(_get_current_function_mode_stack()), tuple(_get_current_dispatch_mode_stack()), default,
        _device.CURRENT_DEVICE,
    )  # fmt: skip


def _put_modes(value: tuple[Any, ...]) -> None:
    import torch
    from torch import overrides
    from torch.utils import _device, _python_dispatch

    for module, old, new in ((overrides, _modes()[0], value[0]), (_python_dispatch, _modes()[1], value[1])):
        for _ in old:
            module._pop_mode()
        for mode in new:
            module._push_mode(mode)
    torch._GLOBAL_DEVICE_CONTEXT.device_context, _device.CURRENT_DEVICE = value[2:]


def _autocast() -> dict[str, bool]:
    import torch

    return {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}


def _put_autocast(value: Mapping[str, bool]) -> None:
    import torch

    for kind, enabled in value.items():
        torch.set_autocast_enabled(kind, enabled)


def _algorithms() -> tuple[bool, bool]:
    import torch

    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _put_algorithms(value: tuple[bool, bool]) -> None:
    import torch

    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return None


def _put_folder(value: str | None) -> None:
    if value is not None:
        os.chdir(value)


def _put_streams(value: tuple[Any, Any]) -> None:
    sys.stdout, sys.stderr = value


def _put_filters(value: list[Any]) -> None:
    warnings.resetwarnings()
    warnings.filters.extend(value)  # type: ignore[attr-defined]


def _functions() -> dict[str, dict[str, Any]]:
    return {space: dict(vars(_space(space))) for space in _SPACES}


def _space(name: str) -> Any:
    import numpy  # noqa: ICN001, F401
    import torch

    return torch.Tensor if name == "torch.Tensor" else sys.modules[name]


def _changed(before: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
    """The functions that are others now, and what they are. A module may get further ones, when it is used first."""
    found: dict[tuple[str, str], Any] = {}
    for space, functions in before.items():
        now = vars(_space(space))
        names = [name for name, value in functions.items() if now.get(name, _ABSENT) is not value and callable(value)]
        if space == "torch.Tensor":
            names += [name for name in now if name not in functions]
        found |= {(space, name): now.get(name, _ABSENT) for name in names}
    return found


def _replace(functions: Mapping[tuple[str, str], Any]) -> None:
    for (space, name), value in functions.items():
        if value is not _ABSENT:
            setattr(_space(space), name, value)
        elif name in vars(_space(space)):
            delattr(_space(space), name)


def _keep_standard_streams() -> None:
    for number in (1, 2):
        if number not in _KEPT:
            with contextlib.suppress(OSError):
                _KEPT[number] = os.dup(number)


def _open_standard_streams() -> None:
    """Opens again what a target closed of descriptors 1 and 2, and of Python's streams on them."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError:
            if number in _KEPT:
                os.dup2(_KEPT[number], number)
        if getattr(getattr(sys, name), "closed", False):
            setattr(sys, name, open(number, "w", errors="backslashreplace", closefd=False))  # noqa: SIM115
