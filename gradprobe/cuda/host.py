"""Host code in a .cu file: what neither NVRTC nor a CPU can compile, and kernels do not need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
# Headers of PyTorch and of Python, and those of the C++ library that no device code can use.
_HEADERS = re.compile(
    r"(?:torch|ATen|c10|pybind11)/|(?:Python|iostream|fstream|sstream|iomanip|vector|string|map|memory|chrono|random)(?:\.h)?$"
)
_ON_DEVICE = re.compile(r"\b__(?:global|device|constant|shared)__\b")
_ON_HOST = re.compile(
    r"<<<|\b(?:torch|at|c10|pybind11)::|\bnamespace\s+(?:torch|at|c10|pybind11)\b|\bPYBIND11_MODULE\b|\bTORCH_\w+"
    r"|\bcuda(?:Malloc|Memcpy|Memset|Free|Device|Stream|Event|Get|Launch|Func|Set|Error)\w*"
    r"|\bstd::(?:cout|cerr|endl|vector|string|map|chrono|unique_ptr|shared_ptr)\b"
)
_TRANSPARENT = re.compile(r"(?:\bnamespace\b[^;{}()]*|\bextern\s*)$")
_NO_NAMES = ("sizeof", "decltype", "alignas", "noexcept", "explicit")
_NAME = re.compile(r"\busing\s+(\w+)\s*=|([\w~]+)\s*\(")


@dataclass(frozen=True)
class LeftOut:
    """A piece of host code."""

    start: int
    end: int
    name: str
    """Of the function, or `#include <...>`; "" of a declaration without a name."""


def host_code(text: str, plain: str) -> tuple[LeftOut, ...]:
    """The pieces of a file that are host code; none where no function of it launches a kernel or names PyTorch.

    Args:
        plain: the text without comments, strings and what `#if` leaves out; every other character in its place.
    """
    code = _DIRECTIVE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), plain)
    pieces = [(start, end) for start, end in _pieces(code) if not _ON_DEVICE.search(code, start, end)]
    found: dict[int, LeftOut] = {}
    names: set[str] = {"main"}
    while True:
        calls = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
        new = [one for one in pieces if one[0] not in found and _is_host(code[slice(*one)], calls)]
        if not new:
            break
        for start, end in new:
            name = _name(code[start:end])
            found[start] = LeftOut(start, end, name)
            names |= {name} - {""}
    headers = [
        LeftOut(match.start(), match.end(), match.group().strip())
        for match in _INCLUDE.finditer(text)
        if _HEADERS.match(match.group(1)) and "#" in plain[match.start() : match.end()]
    ]
    torch = any(not one.name.endswith(">") or "/" in one.name for one in headers)
    return tuple(sorted((*headers, *found.values()), key=lambda one: one.start)) if found or torch else ()


def _is_host(code: str, calls: re.Pattern[str]) -> bool:
    return bool(_ON_HOST.search(code) or calls.search(code))


def _name(code: str) -> str:
    head = re.split(r"[{;]", re.sub(r"\btemplate\s*<[^{}]*?>\s*(?=\w)", "", code), maxsplit=1)[0]
    names = (found.group(1) or found.group(2) for found in _NAME.finditer(head))
    return next((name for name in names if not name.startswith("__") and name not in _NO_NAMES), "")


def _pieces(code: str) -> Iterator[tuple[int, int]]:
    """Declarations and definitions of a file and of its namespaces, from the first character to behind the last."""
    start = at = 0
    while at < len(code):
        if code[at] == "{" and not _TRANSPARENT.search(code[start:at]):
            at = _behind(code, at)
        elif code[at] not in "{};":
            at += 1
            continue
        elif code[at] == ";":
            at += 1
        else:  # into or out of a namespace
            start = at = at + 1
            continue
        yield _first(code, start, at), at
        start = at


def _first(code: str, start: int, end: int) -> int:
    while start < end - 1 and code[start].isspace():
        start += 1
    return start


def _behind(code: str, at: int) -> int:
    """The place behind the brace that closes one; a `;` that follows belongs to it."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(code, at):
        depth += 1 if brace.group() == "{" else -1
        if not depth:
            closed = re.compile(r"\s*;").match(code, brace.end())
            return closed.end() if closed else brace.end()
    return len(code)
