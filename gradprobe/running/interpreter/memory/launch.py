"""Launch: the tensors that one launch of a kernel was given, and which of them its pointers came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import numpy as np

from ...elements import Array
from .origins import NO_ORIGIN
from .stores import Stores
from .views import View, argument_view


class Launch:
    """One launch, from its arguments on."""

    def __init__(self, number: int, function: Any, known: Sequence[View]) -> None:
        self.number = number
        self.kernel: str = getattr(function, "__name__", str(function))
        self.code: CodeType | None = getattr(function, "__code__", None)
        self.stores = Stores()
        self.views: list[View] = []
        """By the number that is the origin of their pointers."""
        self.around: tuple[View, ...] = tuple(known)
        """All tensors that an address may belong to, the caller's before the arguments."""
        self._known = tuple(known)
        self._origins: dict[int, int] = {}

    def learn(self, given: Mapping[str, Any], on_host: Mapping[str, Any]) -> None:
        """Takes the arguments by parameter name, as torch has them and as the interpreter gives them to the kernel."""
        for parameter, theirs in given.items():
            for name, tensor, host, handed in _tensors(parameter, theirs, on_host[parameter]):
                self._origins[id(handed)] = len(self.views)
                self.views.append(argument_view(tensor, host, name, self._known))
        moved = {view.home: view.low - view.home for view in self.views}
        known = (_moved(view, moved.get(view.home, 0)) for view in self._known)
        self.around = (*known, *(view for view in self.views if not view.is_own))

    def origin_of(self, argument: Any) -> int:
        """The origin of the pointer that is made of an argument; NO_ORIGIN where it is none that was learnt."""
        return self._origins.get(id(argument), NO_ORIGIN)

    def by_view(self, origins: int | Array, addresses: Array, lanes: Array) -> Iterator[tuple[View | None, Any]]:
        """The addresses that belong to each view, as an index into them; None: to no storage that is known.

        Args:
            origins: one for all pointers, or an array of which the addresses are those at `lanes`.
        """
        if isinstance(origins, int) and origins != NO_ORIGIN:
            yield self.views[origins], slice(None)
            return
        numbers = np.full(len(lanes), origins) if isinstance(origins, int) else origins.reshape(-1)[lanes]
        for number in np.unique(numbers):
            chosen = np.flatnonzero(numbers == number)
            if number != NO_ORIGIN:
                yield self.views[number], chosen
            else:
                yield from ((view, chosen[some]) for view, some in self._by_storage(addresses[chosen]))

    def _by_storage(self, addresses: Array) -> Iterator[tuple[View | None, Array]]:
        """Pointers of lost origin: each address by a view that has it as an element, else by one of its storage."""
        left = np.ones(len(addresses), bool)
        for owns in (lambda view: view.hold(addresses, 1), lambda view: view.in_storage(addresses, 1)):
            for view in (*self.views, *self.around):
                chosen = np.flatnonzero(left & owns(view))
                if chosen.size:
                    left[chosen] = False
                    yield view, chosen
        if left.any():
            yield None, np.flatnonzero(left)


def _moved(view: View, by: int) -> View:
    return replace(view, start=view.start + by, low=view.low + by, high=view.high + by) if by else view


def _tensors(parameter: str, given: Any, on_host: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """(name, tensor, tensor on the host, what the interpreter makes a pointer of) of an argument and of its parts."""
    if isinstance(given, tuple):
        for at, (part, its_host) in enumerate(zip(given, on_host, strict=True)):
            yield from _tensors(f"{parameter}[{at}]", part, its_host)
    elif hasattr(given, "data_ptr"):
        # Triton wraps a tensor whose bits it is to take for another dtype.
        yield parameter, getattr(given, "base", given), getattr(on_host, "base", on_host), on_host
    elif hasattr(given, "block_shape") and hasattr(given, "base"):
        yield from _tensors(parameter, given.base, on_host.base)
