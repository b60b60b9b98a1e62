"""Which configuration of a kernel under `@triton.autotune` runs, where none is chosen by time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .backend import interpreting


@dataclass(frozen=True)
class Configuration:
    """One configuration of an autotuned kernel, as it ran."""

    kernel: str
    number: int
    """From 1, in the order of the decorator."""
    count: int
    """How many the kernel has."""
    words: str
    """BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=3."""
    same: tuple[int, ...]
    """For each of the kernel's configurations the number of the first that is the same to the interpreter."""
    pinned: bool = False
    """Whether it was asked for; if not, it is the first that fits."""
    others: tuple[int, ...] = ()
    """The numbers of those that its own pruning leaves, one of those that are the same."""

    @property
    def sentence(self) -> str:
        why = "as asked" if self.pinned else "the first that fits"
        which = f"configuration {self.number} of {self.count}, {why}"
        return f"{self.kernel} is autotuned: it ran with {which}: {self.words}"


@contextlib.contextmanager
def one_configuration(ran: list[Configuration], pinned: Mapping[str, int]) -> Iterator[None]:
    """While open, an autotuned kernel takes the configuration that is asked for, else the first that fits.

    Nothing is timed. A configuration does not fit where the interpreter's first program raises, as
    `tl.static_assert(BLOCK_N <= HEAD_DIM)` does; where none fits, what the first one raised is raised.

    Args:
        ran: told of each launch's configuration.
        pinned: the number of the configuration of some kernels, by name.
    """
    tuner: Any = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    if tuner is None:
        yield
        return
    original = tuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launch = _Launch(self, args, kwargs)
        return launch.pinned_or_first(pinned.get(launch.kernel), ran)

    tuner.run = run
    try:
        yield
    finally:
        tuner.run = original


@dataclass(frozen=True)
class _Launch:
    """One launch of an autotuned kernel."""

    tuner: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def kernel(self) -> str:
        return str(self.tuner.base_fn.__name__)

    def pinned_or_first(self, number: int | None, ran: list[Configuration]) -> Any:
        """The configuration of that number, where pruning leaves it and it fits; else the first that fits."""
        asked = self.tuner.configs[number - 1 : number] if number is not None else []
        for config in self._allowed():
            if any(config is one for one in asked):
                with _passed_by_where_it_does_not_fit():
                    return self.with_configuration(config, ran, pinned=True)
        return self.first_that_fits(ran)

    def first_that_fits(self, ran: list[Configuration]) -> Any:
        configs = self._allowed()
        first: Exception | None = None
        for config in configs:
            try:
                return self.with_configuration(config, ran)
            except Exception as error:
                if not _does_not_fit(error):
                    raise
                first = first or error
        assert first is not None
        raise first

    def with_configuration(self, config: Any, ran: list[Configuration], *, pinned: bool = False) -> Any:
        """The launch as the tuner makes it once it has chosen."""
        words = config.all_kwargs()
        self._refuse_what_is_given_twice(config)
        if config.pre_hook is not None:
            config.pre_hook({**dict(zip(self.tuner.arg_names, self.args, strict=False)), **self.kwargs, **words})
        result = self.tuner.fn.run(*self.args, **self.kwargs, **words)
        ran.append(self._described(config, pinned=pinned))
        return result

    def _allowed(self) -> Sequence[Any]:
        """What the decorator's own pruning leaves, one of those that are the same to the interpreter."""
        self.tuner.nargs = dict(zip(self.tuner.arg_names, self.args, strict=False))
        left = self.tuner.prune_configs(dict(self.kwargs)) if len(self.tuner.configs) > 1 else self.tuner.configs
        kept: dict[str, Any] = {}
        for config in left:
            kept.setdefault(_meaning(config), config)
        return list(kept.values())

    def _refuse_what_is_given_twice(self, config: Any) -> None:
        twice = sorted(config.kwargs.keys() & self.kwargs.keys())
        if twice:
            raise ValueError(f"{self.kernel} is given {', '.join(twice)} by its launch and by its configurations")

    def _described(self, config: Any, *, pinned: bool) -> Configuration:
        meanings = [_meaning(each) for each in self.tuner.configs]
        number = next(at for at, each in enumerate(self.tuner.configs) if each is config) + 1
        words = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
        shown = ", ".join(f"{name}={value}" for name, value in words.items())
        same = tuple(meanings.index(meaning) + 1 for meaning in meanings)
        kept = {id(each) for each in self._allowed()}
        others = tuple(at for at, each in enumerate(self.tuner.configs, 1) if id(each) in kept and at != number)
        return Configuration(self.kernel, number, len(meanings), shown, same, pinned, others)


def _meaning(config: Any) -> str:
    """What of a configuration counts: to the interpreter, what the kernel is given by name."""
    return repr((sorted(config.kwargs.items()), config.pre_hook) if interpreting() else config)


@contextlib.contextmanager
def _passed_by_where_it_does_not_fit() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not _does_not_fit(error):
            raise


def _does_not_fit(error: Exception) -> bool:
    """Whether the compiler refuses it, or it is too large for the GPU, or the interpreter's first program raised it."""
    if type(error).__name__ in ("OutOfResources", "CompileTimeAssertionFailure"):
        return True
    builder = getattr(sys.modules.get("triton.runtime.interpreter"), "interpreter_builder", None)
    return type(error).__name__ == "InterpreterError" and getattr(builder, "grid_idx", None) == (0, 0, 0)
