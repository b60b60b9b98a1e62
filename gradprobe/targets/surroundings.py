"""What a target changes of its process; what it warns of."""

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any, NamedTuple

# The functions of these judge a target. What it replaces there is put back while it does not run.
_SPACES = (
    "builtins", "math", "numpy", "torch", "torch.autograd", "torch.cuda", "torch.linalg", "torch.nn.functional",
    "torch.special", "torch.Tensor",
)  # fmt: skip
_ABSENT = object()
_MOST_NAMED = 4
# Copies of descriptors 1 and 2, for a target that closes them.
_KEPT: dict[int, int] = {}


class _Setting(NamedTuple):
    get: Callable[[], Any]
    put: Callable[[Any], object]
    words: str = ""  # in sentences; "" where it changes no result
    stays: bool = True  # whether the target's value is set again for its next run


@dataclass
class Surroundings:
    _left: dict[str, Any] = field(default_factory=dict)
    _replaced: dict[tuple[str, str], Any] = field(default_factory=dict)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """While open, all is as the target left it; afterwards as before."""
        settings = _settings()
        for number in (1, 2):
            if number not in _KEPT:
                with contextlib.suppress(OSError):
                    _KEPT[number] = os.dup(number)
        values = _values(settings)
        functions = {space: dict(vars(_space(space))) for space in _SPACES}
        for name, value in self._left.items():
            if settings[name].stays:
                settings[name].put(value)
        _replace(self._replaced)
        try:
            yield
        finally:
            self._replaced = _changed(functions)
            own = {key: functions[key[0]].get(key[1], _ABSENT) for key in self._replaced}
            _replace(own)
            now = _values(settings).items()
            self._left = {name: value for name, value in now if value != values[name]}
            for name in self._left:
                settings[name].put(values[name])
            _open_standard_streams()

    @property
    def sets_threads(self) -> bool:
        """A fork would wait for threads that it has not."""
        return "threads" in self._left

    @property
    def sentence(self) -> str:
        # torch replaces some of its own functions when parts of it are first used.
        named = sorted(
            f"{space}.{name}"
            for (space, name), value in self._replaced.items()
            if str(getattr(value, "__module__", "")).partition(".")[0] != "torch"
        )
        if len(named) > _MOST_NAMED:
            named[_MOST_NAMED:] = [f"{len(named) - _MOST_NAMED} functions more"]
        settings = [_settings()[name].words for name in self._left]
        return ", ".join([*named, *filter(None, settings)])


def _settings() -> Mapping[str, _Setting]:
    import numpy as np
    import torch

    kinds = ("cpu", "cuda")

    def put_autocast(enabled: Iterable[bool]) -> None:
        for kind, is_on in zip(kinds, enabled, strict=True):
            torch.set_autocast_enabled(kind, is_on)

    def put_filters(value: list[Any]) -> None:
        warnings.resetwarnings()
        warnings.filters.extend(value)  # type: ignore[attr-defined]

    def device() -> torch.device | None:
        context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        return getattr(context, "device", None)

    words = "whether gradients are recorded"
    algorithms = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    autocast = lambda: [*map(torch.is_autocast_enabled, kinds)]  # noqa: E731
    return {
        "device": _Setting(device, torch.set_default_device, "the default device"),
        "dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype, "the default dtype"),
        "gradients": _Setting(torch.is_grad_enabled, torch.set_grad_enabled, words),
        "autocast": _Setting(autocast, put_autocast, "autocast"),
        "algorithms": _Setting(*algorithms, "deterministic algorithms"),
        "threads": _Setting(torch.get_num_threads, torch.set_num_threads),
        "recursion": _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
        "folder": _Setting(_folder, lambda value: os.chdir(value or os.curdir)),
        "stdout": _Setting(partial(getattr, sys, "stdout"), partial(setattr, sys, "stdout")),
        "stderr": _Setting(partial(getattr, sys, "stderr"), partial(setattr, sys, "stderr")),
        # Both are set around every call of a target anyway.
        "warnings": _Setting(lambda: list(warnings.filters), put_filters, stays=False),
        "numbers": _Setting(np.geterr, lambda value: np.seterr(**value), stays=False),
    }


def _values(settings: Mapping[str, _Setting]) -> dict[str, Any]:
    return {name: setting.get() for name, setting in settings.items()}


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _space(name: str) -> Any:
    import numpy  # noqa: F401
    import torch

    return torch.Tensor if name == "torch.Tensor" else sys.modules[name]


def _changed(before: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
    """What a module adds at its first use does not count."""
    found = dict[tuple[str, str], Any]()
    for space, functions in before.items():
        now = vars(_space(space))
        names = [name for name, value in functions.items() if callable(value)]
        names += [name for name in now if name not in functions and space == "torch.Tensor"]
        for name in names:
            value = now.get(name, _ABSENT)
            if value is not functions.get(name, _ABSENT):
                found[space, name] = value
    return found


def _replace(functions: Mapping[tuple[str, str], Any]) -> None:
    for (space, name), value in functions.items():
        if value is not _ABSENT:
            setattr(_space(space), name, value)
        elif name in vars(_space(space)):
            delattr(_space(space), name)


def _open_standard_streams() -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError:
            if number in _KEPT:
                os.dup2(_KEPT[number], number)
        if getattr(getattr(sys, name), "closed", False):
            setattr(sys, name, open(number, "w", errors="backslashreplace", closefd=False))  # noqa: SIM115


_WARNINGS: dict[str, None] = {}


def kept_warnings() -> tuple[str, ...]:
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
    """Each once and none an error, without numpy's in the interpreter."""
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
