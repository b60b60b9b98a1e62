"""A .cu file as it was read: its text, what it includes, and the kernels that it declares."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..failures import TargetFailure
from .host import LeftOut, host_code

# As g++ calls it.
_ANONYMOUS = "_GLOBAL__N_1"
_COMMENT = re.compile(
    r"//(?:\\\n|[^\n])*|/\*.*?\*/|\bR\"(?P<end>[^()\\\s]*)\(.*?\)(?P=end)\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'",
    re.DOTALL,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_SHARED = re.compile(r"\b__shared__\b(?P<type>[^;=(){}\[\]]*?)\b(?P<name>\w+)\s*(?:\[[^;=]*)?;")
_ALIGNED = re.compile(r"\b(?:alignas|__align__)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)")
_KERNEL = re.compile(
    r"\b__global__\b(?P<between>[^;{}()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^;{}()]*)*?)\b(?P<name>\w+)\s*\("
)
_DYNAMIC = re.compile(r"\bextern\b[^;{}]*?\b__shared__\b[^;{}]*?\b(\w+)\s*\[\s*\]\s*;")
_CONDITIONAL = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b(.*)")
# Of what `#if` asks, what is the same for all: NVRTC's macros, which the header for CPUs has too.
_HOLDS = {
    "0": False, "1": True, "false": False, "true": True, "defined(__CUDACC__)": True, "defined(__CUDACC_RTC__)": True,
    "!defined(__CUDACC__)": False, "!defined(__CUDACC_RTC__)": False, "defined(__NVCC__)": False,
    "!defined(__NVCC__)": True,
}  # fmt: skip
_BRACE = re.compile(r"\b(?:inline\s+)?namespace\b\s*(?P<name>[\w:]*)\s*\{|[{}]")
# What only nvcc or a GPU can make something of.
_HOST = (
    (re.compile(r"<<<"), "a launch <<<...>>> is host code: leave it out here, and launch from Python"),
    (re.compile(r"\basm\s*(?:volatile\s*)?\("), "inline PTX means nothing to a CPU"),
    (re.compile(r"\bcooperative_groups\b|\bcg::"), "cooperative groups are not supported on a CPU"),
    (re.compile(r"\b(?:nvcuda::)?wmma::"), "matrix instructions (wmma) are not supported on a CPU"),
    (re.compile(r"\b__managed__\b"), "__managed__ variables are not supported on a CPU"),
)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel as it is written."""

    name: str
    type: str
    """Without qualifiers: "float*", "long long"."""


@dataclass(frozen=True)
class CudaSource:
    """A file, and what it includes from folders that are the user's."""

    path: Path
    text: str
    included: tuple[tuple[Path, str], ...]
    """Path and text of each."""

    @functools.cached_property
    def sha256(self) -> str:
        """Of the file alone."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @functools.cached_property
    def key(self) -> str:
        """Changes with the file and with all that it includes."""
        texts = ((self.path, self.text), *self.included)
        return hashlib.sha256("".join(f"{path}\n{len(text)}\n{text}" for path, text in texts).encode()).hexdigest()

    @functools.cached_property
    def host(self) -> tuple[LeftOut, ...]:
        """What of the text is host code, which is left out."""
        return host_code(self.text, _plain(self.text))

    @functools.cached_property
    def of_kernels(self) -> str:
        """The text with spaces for host code."""
        text = self.text
        for one in self.host:
            text = text[: one.start] + re.sub(r"[^\n]", " ", text[one.start : one.end]) + text[one.end :]
        return text

    @functools.cached_property
    def left_out(self) -> str:
        """What is left out, with its lines; "" where nothing is."""
        told = [f"{_lines(self.text, one)}{f' ({one.name})' if one.name else ''}" for one in self.host]
        return f"{self.path.name}: host code is left out: {', '.join(told)}" if told else ""

    @functools.cached_property
    def plain(self) -> str:
        """Without comments, strings, host code and what `#if` leaves out; every other character in its place."""
        return _plain(self.of_kernels)

    @functools.cached_property
    def everything(self) -> str:
        """That, and what is included."""
        return "\n".join((*(_plain(text) for _, text in self.included), self.plain))

    @functools.cached_property
    def kernels(self) -> dict[str, tuple[Parameter, ...]]:
        """The parameters of each kernel that is no template, by name."""
        found = {}
        for match in _KERNEL.finditer(self.plain):
            if not self._is_template(match.start()):
                found[match.group("name")] = self._parameters(match.end())
        return found

    @functools.cached_property
    def templates(self) -> dict[str, tuple[Parameter, ...]]:
        """Those of each kernel that is a template."""
        return {
            match.group("name"): self._parameters(match.end())
            for match in _KERNEL.finditer(self.plain)
            if self._is_template(match.start())
        }

    @functools.cached_property
    def dynamic_arrays(self) -> tuple[str, ...]:
        """The names of its `extern __shared__` arrays."""
        return tuple(dict.fromkeys(_DYNAMIC.findall(_ALIGNED.sub(" ", self.everything))))

    @functools.cached_property
    def dynamic_symbols(self) -> tuple[str, ...]:
        """What the linker calls them: those that a function in a namespace declares belong to it."""
        text = _ALIGNED.sub(_blanks, self.everything)
        found = ((match.group(1), _scopes(text, match.start())) for match in _DYNAMIC.finditer(text))
        return tuple(dict.fromkeys(_mangled((*scopes, name)) if scopes else name for name, scopes in found))

    def dynamic_array_of(self, kernel: str) -> str:
        """The name that a kernel has for its dynamic shared memory: its own, else one of a function that it calls."""
        starts = [match.start("name") for match in _KERNEL.finditer(self.plain)]
        own = [match.start("name") for match in _KERNEL.finditer(self.plain) if match.group("name") == kernel]
        for start in own[-1:]:
            end = min((other for other in starts if other > start), default=len(self.plain))
            if found := _DYNAMIC.search(_ALIGNED.sub(" ", self.plain[start:end])):
                return found.group(1)
        return next(iter(self.dynamic_arrays), "")

    @functools.cached_property
    def namespaces(self) -> tuple[str, ...]:
        """Those in which kernels stand, "outer::inner"; not the anonymous one, whose names need no prefix."""
        found = ("::".join(_scopes(self.plain, match.start())) for match in _KERNEL.finditer(self.plain))
        return tuple(
            dict.fromkeys(name.replace(f"::{_ANONYMOUS}", "") for name in found if name not in ("", _ANONYMOUS))
        )

    @functools.cached_property
    def shared_types(self) -> dict[str, str]:
        """What shared arrays are declared as, by name; those of one name and two types are left out."""
        found: dict[str, set[str]] = {}
        for match in _SHARED.finditer(_ALIGNED.sub(" ", self.everything)):
            found.setdefault(match.group("name"), set()).add(" ".join(match.group("type").split()))
        return {name: types.pop() for name, types in found.items() if len(types) == 1}

    def line_of(self, kernel: str) -> int:
        """The line in which a kernel's name stands."""
        for match in _KERNEL.finditer(self.plain):
            if match.group("name") == kernel:
                return self.plain.count("\n", 0, match.start("name")) + 1
        return 1

    def unsupported_on_a_cpu(self) -> str:
        """The first line that cannot run on a CPU, and why; "" where there is none."""
        plain = self.plain
        places = [(found.start(), why) for pattern, why in _HOST if (found := pattern.search(plain))]
        if not places:
            return ""
        at, why = min(places)
        return f"{self.path.name}:{plain.count(chr(10), 0, at) + 1}: {why}"

    def _is_template(self, at: int) -> bool:
        before = self.plain[:at].rstrip()
        before = re.sub(r'(?:\binline|\bstatic|extern\s*"?\s*C?\s*"?)\s*$', "", before).rstrip()
        return before.endswith(">") and "template" in before[max(before.rfind(";"), before.rfind("}")) + 1 :]

    def _parameters(self, start: int) -> tuple[Parameter, ...]:
        text, depth, at = self.plain, 1, start
        while depth and at < len(text):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        return tuple(_parameter(piece) for piece in _split(text[start : at - 1]) if piece.strip() not in ("", "void"))


def read_source(path: Path, folders: Sequence[str | Path] = ()) -> CudaSource:
    """The file as it is now.

    Args:
        path: of the file.
        folders: where what it includes is sought besides the file's own.

    Raises:
        TargetFailure: it is not there, or is no text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetFailure(f"cannot read the CUDA source {path}: {error}", "is the path right?") from error
    return _as_before(CudaSource(path.resolve(), text, _included(path.resolve(), text, folders)))


@functools.lru_cache(maxsize=64)
def _as_before(source: CudaSource) -> CudaSource:
    """The equal one that was read before, with what was found in it."""
    return source


def _included(path: Path, text: str, folders: Sequence[str | Path]) -> tuple[tuple[Path, str], ...]:
    found: dict[Path, str] = {}
    waiting = [(path, text)]
    while waiting:
        file, words = waiting.pop()
        for name in _INCLUDE.findall(words):
            places = (folder / name for folder in (file.parent, path.parent, *map(Path, folders)))
            other = next((place.resolve() for place in places if place.is_file()), path)
            if other not in (path, *found):
                found[other] = other.read_text(encoding="utf-8", errors="replace")
                waiting.append((other, found[other]))
    return tuple(sorted(found.items()))


def _lines(text: str, one: LeftOut) -> str:
    first, last = (text.count("\n", 0, at) + 1 for at in (one.start, one.end))
    return f"line {first}" if first == last else f"lines {first} to {last}"


def _plain(text: str) -> str:
    lines = _COMMENT.sub(_blanks, text).splitlines(keepends=True)
    branches: list[bool | None] = []
    for number, line in enumerate(lines):
        directive = _CONDITIONAL.match(line)
        if directive is not None:
            _take_branch(branches, directive.group(1), "".join(directive.group(2).split()))
        elif False in branches:
            lines[number] = re.sub(r"[^\n]", " ", line)
    return "".join(lines)


def _blanks(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found.group())


def _take_branch(branches: list[bool | None], word: str, condition: str) -> None:
    """Notes whether the lines behind a directive count; None where options decide it, and they may."""
    if word.startswith("if"):
        known = _HOLDS.get(condition if word == "if" else f"defined({condition})")
        branches.append(not known if known is not None and word == "ifndef" else known)
    elif branches and word == "endif":
        branches.pop()
    elif branches and branches[-1] is not None:
        branches[-1] = not branches[-1] if word == "else" else (None if not branches[-1] else False)


def _scopes(text: str, at: int) -> tuple[str, ...]:
    """The namespaces around a place."""
    stack: list[tuple[str, ...]] = []
    for brace in _BRACE.finditer(text, 0, at):
        if brace.group() == "}":
            del stack[-1:]
        elif brace.group() == "{":
            stack.append(())
        else:
            stack.append(tuple(brace.group("name").split("::")) if brace.group("name") else (_ANONYMOUS,))
    return tuple(name for names in stack for name in names)


def _mangled(parts: Sequence[str]) -> str:
    return f"_ZN{''.join(f'{len(part)}{part}' for part in parts)}E"


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    pieces, depth, piece = [], 0, ""
    for character in text:
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            pieces.append(piece)
            piece = ""
        else:
            piece += character
    return [*pieces, piece]


def _parameter(text: str) -> Parameter:
    text = text.partition("=")[0]
    text = re.sub(r"\b(?:const|volatile|__restrict__|__restrict|__grid_constant__|struct)\b", " ", text)
    found = re.match(r"^(?P<type>.*?[\s*&])(?P<name>\w+)\s*(?P<array>(?:\[[^\]]*\])*)\s*$", text.strip(), re.DOTALL)
    if found is None:
        return Parameter("", " ".join(text.split()))
    kind = " ".join(found.group("type").split()).replace(" *", "*")
    return Parameter(found.group("name"), kind + ("*" if found.group("array") else ""))
