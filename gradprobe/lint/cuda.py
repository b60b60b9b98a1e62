"""CUDA kernels' pointers, read from their text: what is added to each, word by word and without a parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..cuda.unit import Entry
from .record import Advance, Record
from .spot import Spot
from .values import Factor, Term

_WORD = re.compile(r"[A-Za-z_]\w*")
_TYPES = {"long", "int", "unsigned", "size_t", "int64_t", "int32_t", "static_cast", "short", "const"}
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True, eq=False)
class CudaKernel:
    """A kernel of a .cu file."""

    entry: Entry

    @property
    def name(self) -> str:
        return self.entry.plain_name

    @property
    def line(self) -> int:
        return self.entry.line

    @property
    def file(self) -> str:
        return str(self.entry.file)

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.entry.parameters)

    @cached_property
    def span(self) -> tuple[int, int]:
        """Where its body begins and ends in the file's text."""
        text = self.entry.unit.source.plain
        found = re.search(rf"\b__global__\b[^;{{}}]*?\b{self.name}\s*\(", text)
        start = text.index("{", _closing(text, found.end() - 1)) if found is not None else 0
        return start + 1, _closing(text, start) if found is not None else 0

    @cached_property
    def mentioned(self) -> dict[str, int]:
        """How often each name stands in its body."""
        found: dict[str, int] = {}
        for match in _WORD.finditer(self.entry.unit.source.plain, *self.span):
            found[match.group()] = found.get(match.group(), 0) + 1
        return found

    def spot(self, start: int, end: int) -> Spot:
        """A piece of the file's text."""
        text = self.entry.unit.source.text
        first = text.rfind("\n", 0, start) + 1
        line = text[first : text.find("\n", first) if "\n" in text[first:] else len(text)]
        indent = len(line) - len(line.lstrip())
        return Spot(
            self.file, text.count("\n", 0, start) + 1, start - first - indent, end - start, line.strip(), self.name
        )


@lru_cache(maxsize=256)
def kernel_of(entry: Entry) -> CudaKernel:
    """A kernel, read once."""
    return CudaKernel(entry)


def read_cuda(kernel: CudaKernel, strides: frozenset[str], pointers: frozenset[str]) -> Record:
    """What its pointers are advanced by in its own body.

    Args:
        strides, pointers: which of its parameters are strides, and which tensors.
    """
    return _Reader(kernel, strides, {name: name for name in pointers}).read()


@dataclass
class _Reader:
    """One kernel as it is read."""

    kernel: CudaKernel
    strides: frozenset[str]
    names: dict[str, str]
    """What each pointer starts from: a parameter, or a variable that was made from one."""

    def read(self) -> Record:
        record = Record(self.kernel)
        text, (start, end) = self.kernel.entry.unit.source.plain, self.kernel.span
        for match in _WORD.finditer(text, start, end):
            base = self.names.get(match.group())
            if base is None:
                self._alias(text, match)
                continue
            spot = self.kernel.spot(match.start(), match.end())
            for term in self._terms(text, match.end()):
                record.expressions.add(spot)
                record.advances[Advance(base, term, spot, match.group())] = None
            if not text[match.end() :].lstrip().startswith("+="):
                record.expressions.add(spot)
                record.accesses.setdefault(base, spot)
        return record

    def _alias(self, text: str, match: re.Match[str]) -> None:
        """A variable that is declared as a pointer plus something is that pointer too."""
        declared = re.match(r"\s*=\s*([A-Za-z_]\w*)\s*(?=[+;])", text[match.end() :])
        before = text[: match.start()].rstrip()
        if declared and declared.group(1) in self.names and before.endswith(("*", "auto", "__restrict__")):
            self.names[match.group()] = self.names[declared.group(1)]

    def _terms(self, text: str, at: int) -> Iterator[Term]:
        """What is added to the pointer that ends at a place of the text."""
        rest = text[at:]
        after = at + len(rest) - len(rest.lstrip())
        if text[after] == "[":
            yield from self._sum(text, after + 1, _closing(text, after))
        elif text.startswith("+=", after):
            yield from self._sum(text, after + 2, text.index(";", after))
        elif text[after] in "+,)":
            end = _end(text, after if text[after] != "+" else after + 1)
            yield from self._sum(text, after + 1, end) if text[after] == "+" else ()
            yield from self._passed(text, at, end)

    def _passed(self, text: str, pointer: int, at: int) -> Iterator[Term]:
        """The strides that are passed right behind the only pointer of a call."""
        opens = _opening(text, pointer)
        inside = [match.group() for match in _WORD.finditer(text, opens, _closing(text, opens))]
        while text[at] == "," and sum(word in self.names for word in inside) == 1:
            end = _end(text, at + 1)
            word = text[at + 1 : end].strip()
            if not _WORD.fullmatch(word) or word not in self.strides:
                return
            start = text.index(word, at)
            spot = self.kernel.spot(start, start + len(word))
            yield Term((Factor(word, (spot,)),))
            at = end

    def _sum(self, text: str, start: int, end: int) -> Iterator[Term]:
        for first, last in _pieces(text, start, end):
            words = [match for match in _WORD.finditer(text, first, last) if match.group() not in _TYPES]
            factors = [
                Factor(match.group(), (self.kernel.spot(match.start(), match.end()),))
                for match in words if match.group() in self.strides
            ]  # fmt: skip
            index = frozenset(match.group() for match in words if match.group() not in self.strides)
            yield Term(tuple(factors), index)


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The summands between two places, at + and - outside brackets."""
    depth, first = 0, start
    for at in range(start, end):
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        if not depth and text[at] in "+-":
            yield first, at
            first = at + 1
    yield first, end


def _end(text: str, start: int) -> int:
    """Where an argument, or what is assigned, ends."""
    depth = 0
    for at in range(start, len(text)):
        if not depth and text[at] in ",);":
            return at
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
    return len(text) - 1


def _opening(text: str, at: int) -> int:
    """Where the bracket opens that a place stands in."""
    depth = 0
    for place in range(at - 1, -1, -1):
        depth += (text[place] in _CLOSE) - (text[place] in _OPEN)
        if depth < 0:
            return place
    return 0


def _closing(text: str, start: int) -> int:
    """Where the bracket closes that opens at a place."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        if not depth:
            return at
    return len(text) - 1
