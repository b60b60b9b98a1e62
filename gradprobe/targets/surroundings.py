"""The settings of the process that a target changed: they hold while it runs, and for nobody else. What it warns of."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

# What gets a setting, what puts it back, and its words; "" where it changes no result.
_Setting = tuple[Callable[[], Any], Callable[[Any], object], str]


@dataclass
class Surroundings:
    _left: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """While open, all is as the target left it; afterwards as before, for who judges it."""
        import numpy as np

        settings = _settings()
        values = {name: get() for name, (get, _, _) in settings.items()}
        _put(settings, self._left)
        try:
            with warnings.catch_warnings(), np.errstate():
                yield
        finally:
            now = {name: get() for name, (get, _, _) in settings.items()}
            self._left = {name: value for name, value in now.items() if value != values[name]}
            _put(settings, {name: values[name] for name in self._left})

    @property
    def sets_threads(self) -> bool:
        """Then in a fork it would wait for threads that it has not."""
        return "threads" in self._left

    @property
    def sentence(self) -> str:
        """What it left changed and could change a result, or ""."""
        words = (_settings()[name][2] for name in self._left)
        return ", ".join(filter(None, words))


def _settings() -> Mapping[str, _Setting]:
    import torch

    def put_autocast(enabled: tuple[bool, bool]) -> None:
        torch.set_autocast_enabled("cpu", enabled[0])
        torch.set_autocast_enabled("cuda", enabled[1])

    def algorithms() -> tuple[bool, bool]:
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.are_deterministic_algorithms_enabled(), warns

    def put_algorithms(value: tuple[bool, bool]) -> None:
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])

    def device() -> torch.device | None:
        context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        return getattr(context, "device", None)

    def autocast() -> tuple[bool, bool]:
        return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")

    gradients, dtype = torch.is_grad_enabled, torch.get_default_dtype
    return {
        "device": (device, torch.set_default_device, "the default device"),
        "dtype": (dtype, torch.set_default_dtype, "the default dtype"),
        "gradients": (gradients, torch.set_grad_enabled, "whether gradients are recorded"),
        "autocast": (autocast, put_autocast, "autocast"),
        "algorithms": (algorithms, put_algorithms, "deterministic algorithms"),
        "threads": (torch.get_num_threads, torch.set_num_threads, ""),
        "recursion": (sys.getrecursionlimit, sys.setrecursionlimit, ""),
        "folder": (_folder, lambda value: os.chdir(value or os.curdir), ""),
    }


def _put(settings: Mapping[str, _Setting], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        settings[name][1](value)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return None


_WARNINGS: dict[str, None] = {}


def kept_warnings() -> tuple[str, ...]:
    """`attention.py:12: DeprecationWarning: ...`."""
    return tuple(_WARNINGS)


def warning_lines(warned: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"the target warns: {words}" for words in warned)


def _keep(
    message: Warning | str, category: type[Warning], file: str, line: int, *_: Any
) -> None:
    _WARNINGS[f"{PurePath(file).name}:{line}: {category.__name__}: {message}"] = None


@contextmanager
def keeping_warnings() -> Iterator[None]:
    show, warnings.showwarning = warnings.showwarning, _keep  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = show


@contextmanager
def warned_once() -> Iterator[None]:
    """The same, each once and none an error, without numpy's in the interpreter."""
    with warnings.catch_warnings(), keeping_warnings():
        warnings.simplefilter("ignore" if "ignore" in sys.warnoptions else "once")
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
        yield


@contextmanager
def ordinary_torch() -> Iterator[None]:
    import torch

    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        # A mode that every call of torch passes through.
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield
