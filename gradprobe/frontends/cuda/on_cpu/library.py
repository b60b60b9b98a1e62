"""A CUDA source compiled to a library for this CPU, once: its kernels with their parameters, its arrays, its lines."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import linecache
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ....inputs.memory import elements_of
from ....model.failures import TargetFailure
from ....source.text import SourceLine
from ..c_types import Taken, structure
from ..source import CudaSource, compile_errors

if TYPE_CHECKING:
    from torch import Tensor

HERE = Path(__file__).parent
# -O1 keeps each access at its line, and frame pointers show the calls that led there. Findings need lines, and
# addr2line of binutils 2.40 mixes up the files of DWARF 5. Where a structure is read to be passed by value, as a
# __half is, g++ watches the read only if the function that takes it is inlined. A template's shared array would be a
# unique symbol: one for all libraries of a process, though each further instance makes another library.
_WATCHED = (
    *("-std=c++17", "-O1", "-gdwarf-4", "-fPIC", "-fsanitize=thread,alignment", "-fno-extern-tls-init", "-w"),
    *("-ffp-contract=off", "-fno-omit-frame-pointer", "--param", "tsan-instrument-func-entry-exit=0"),
    *("-finline-small-functions", "-fno-semantic-interposition", "--param", "early-inlining-insns=100"),
    *("-fno-gnu-unique", f"-I{HERE / 'include'}"),
)
_RUNTIME = ("-std=c++17", "-O2", "-fPIC", "-fno-omit-frame-pointer")
# The dynamic shared memory of a block on a Hopper GPU. Other GPUs have less.
MOST_SHARED = 227 << 10
# The symbol of the dynamic shared memory, whatever its name in the source.
_ROOM = "gp_room"
# The file of the functions that call kernels, as errors name it: its lines are nobody's.
_CALLERS = "what is called from Python"
# The bytes between two arrays, so that a store behind the end of one does not reach the next.
_GAP = 4096
_ZEROS = re.compile(r"^\t\.size\t(\S+), (\d+)\n\1:\n\t\.zero\t\2\n", re.MULTILINE)
_SHARED_ARRAY = re.compile(r" TLS +GLOBAL +DEFAULT +UND +(\S+)$", re.MULTILINE)
_SYMBOL = re.compile(r"^ *\d+: +([0-9a-f]+) +(0x[0-9a-f]+|\d+) +(TLS|OBJECT) +\w+ +\w+ +\d+ +(.+)$", re.MULTILINE)
# Symbols that are no array of the source: in the library, and in its shared memory.
_OF_THE_COMPILER = ("gradprobe_runtime::", "completed.", "_", "DW.ref.", "guard variable", "typeinfo")
_BESIDE_ARRAYS = (_ROOM, "gradprobe_runtime::", "guard variable", "TLS ")
_Parameters = structure((ctypes.c_int32, "kind bytes of")) * 256


@dataclass(frozen=True)
class Named:
    """An array, as findings name it."""

    name: str
    """"" for the compiler's own data, such as the guard of a shared array's constructor."""
    is_shared: bool = False
    tensor: Tensor | None = None
    start: int = 0
    """The address of a shared or global array; in a library, from its beginning or that of its shared memory."""
    bytes: int = 0
    element: int = 0
    """The bytes of one of its elements; 0 where they are not known."""

    @property
    def end(self) -> int:
        """The address behind its last element."""
        return self.start + self.bytes

    def index(self, address: int, accessed: int) -> str:
        """The element at an address, in brackets; "" of what has one alone."""
        unit = self.element or max(1, accessed)
        number = (address - self.start) // unit
        if self.tensor is not None:
            return str([*(elements_of(self.tensor).index(number) or ())])
        return f"[{number}]" if self.bytes > unit else ""


class Library:
    """A loaded library."""

    def __init__(self, file: Path, kernels: tuple[str, ...]) -> None:
        try:
            self.loaded = ctypes.CDLL(str(file))
        except OSError as error:
            raise TargetFailure(f"the library of a CUDA source cannot be loaded: {error}") from error
        for name in ("gp_shared_base", "gp_shared_bytes", "gp_library_base", "gp_library_bytes"):
            getattr(self.loaded, name).restype = ctypes.c_uint64
        self.file, self._kernels = file, kernels
        self.base: int = self.loaded.gp_library_base()
        self.arrays = tuple(_arrays_in(file))
        self._lines: dict[int, tuple[SourceLine, ...]] = {}

    def kernel(self, name: str) -> int:
        """The address of the function that calls a kernel."""
        caller = getattr(self.loaded, f"gp_kernel_{self._kernels.index(name)}")
        return ctypes.cast(caller, ctypes.c_void_p).value or 0

    def takes(self, kernel: str) -> tuple[Taken, ...]:
        """The types of a kernel's parameters."""
        out = _Parameters()
        count = getattr(self.loaded, f"gp_describe_{self._kernels.index(kernel)}")(out)
        return tuple(Taken(each.kind, each.bytes, each.of) for each in out[:count])

    def lines(self, addresses: Sequence[int]) -> dict[int, tuple[SourceLine, ...]]:
        """By return address, its line and those of the functions that this one is inlined in, by addr2line."""
        new = [address for address in dict.fromkeys(addresses) if address not in self._lines]
        # A return address is the address of the instruction after the call.
        asked = [hex(address - 1) for address in new]
        words = ["addr2line", "--addresses", "--inlines", "--exe", str(self.file), *asked]
        printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout if new else ""
        for part in re.split("^0x", printed, flags=re.MULTILINE)[1:]:
            address, *places = part.splitlines()
            self._lines[int(address, 16) + 1] = tuple(_lines_in(places))
        return {address: self._lines.get(address, ()) for address in addresses}


def _lines_in(places: Iterable[str]) -> Iterator[SourceLine]:
    """What addr2line prints, but for the lines of this runtime."""
    for place in places:
        file, _, number = place.partition(" (")[0].rpartition(":")
        is_own = Path(file).name == _CALLERS or Path(file).resolve().is_relative_to(HERE)
        if file and number.isdigit() and not is_own:
            linecache.checkcache(file)  # it may have changed since another library was compiled from it
            yield SourceLine(file, int(number), linecache.getline(file, int(number)).strip())


@functools.cache
def library_of(source: CudaSource, instance: str = "", *, has_host: bool = False) -> Library:
    """The library of a source's kernels, of one instance of a template where one is named, and of its host code.

    It raises TargetFailure where there is no g++, no CPU can run the source, or it does not compile.
    """
    if unsupported := source.unsupported_on_a_cpu():
        raise TargetFailure(f"a CPU cannot run {unsupported}", "run it on a GPU, or take that out")
    kernels = (*source.kernels, *filter(None, [instance]))
    text = _text(source, kernels, has_host=has_host)
    words = (text, *_WATCHED, *source.include, *(included for _, included in source.included))

    def make(folder: Path) -> Path:
        return _build(source, text, folder, has_host=has_host)

    return Library(_cached(f"{source.path.stem}-", ".so", words, make), kernels)


def _arrays_in(file: Path) -> list[Named]:
    """The arrays and variables in memory that the source defines."""
    found: dict[tuple[int, bool], Named] = {}
    for at, length, kind, symbol in _SYMBOL.findall(_readelf(file, "--demangle")):
        value, size, is_shared = int(at, 16), int(length, 0), kind == "TLS"
        if not size or (not is_shared and symbol.startswith(_OF_THE_COMPILER)):
            continue
        # `kernel<4>(float*, int)::tile`: tile
        name = re.sub(r"(\[abi:\w+\]|\.\d+)$", "", symbol.rpartition("::")[2])
        name = "" if symbol.startswith(_BESIDE_ARRAYS) else name
        if name or (value, is_shared) not in found:
            found[value, is_shared] = Named(name, is_shared, None, value, size)
    return list(found.values())


def _readelf(file: Path, *options: str) -> str:
    """The symbols of an object or a library."""
    words = ["readelf", "--symbols", "--wide", *options, str(file)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


# --- How it is compiled


def _text(source: CudaSource, kernels: tuple[str, ...], *, has_host: bool) -> str:
    """What g++ compiles: the source with its macros, its own name and lines, and functions that call each kernel."""
    lines = ['#include "gradprobe_host.h"' if has_host else '#include "gradprobe_cuda.h"']
    lines += [f"#define {name} {value}" for name, value in source.defines]
    lines.append(f'#line 1 "{source.path}"')
    lines.append(source.with_launches if has_host else source.of_kernels)
    lines.append(f'#line 1 "{_CALLERS}"')
    lines += [f"using namespace {name};" for name in source.namespaces]
    for number, name in enumerate(kernels):
        lines += [
            f'extern "C" void gp_kernel_{number}(void** arguments) {{ gp_call(&{name}, arguments); }}',
            f'extern "C" int gp_describe_{number}(gp_parameter* out) {{ return gp_describe(&{name}, out); }}',
        ]
    for name in source.launchers if has_host else ():
        call = f"return gp_call_host(&{name}, arguments);"
        lines.append(f'extern "C" int gp_host_{name}(void** arguments) {{ {call} }}')
    return "\n".join(lines) + "\n"


def _build(source: CudaSource, text: str, folder: Path, *, has_host: bool) -> Path:
    compiled = functools.partial(_compile, source, folder)
    (folder / "kernels.cpp").write_text(text)
    include = [f"-iquote{source.path.parent}", *(f"-I{entry}" for entry in source.include)]
    exceptions = [] if has_host else ["-fno-exceptions"]  # which no GPU knows
    assembly = compiled(*_WATCHED, *exceptions, *include, "-S", "kernels.cpp", "-o", "kernels.s")
    # Shared arrays have no values: a gap follows each array of zeros.
    assembly.write_text(_ZEROS.sub(rf"\g<0>\t.zero\t{_GAP}\n", assembly.read_text()))
    kernels = compiled("-c", "kernels.s", "-o", "kernels.o")
    (folder / "arrays.cpp").write_text(_dynamic_arrays(kernels))
    compiled(*_RUNTIME, "-c", "arrays.cpp", "-o", "arrays.o")

    def make(other: Path) -> Path:  # once for all sources
        return _compile(source, other, *_RUNTIME, "-c", str(HERE / "runtime.cpp"), "-o", "runtime.o")

    objects = ("kernels.o", "arrays.o", str(_cached("runtime-", ".o", _RUNTIME, make)))
    return compiled("-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs", *objects, "-o", "library.so")


def _dynamic_arrays(kernels: Path) -> str:
    """Defines the dynamic shared memory, to which every `extern __shared__` array is an alias: what kernels lack."""
    kind = "thread_local unsigned char"
    lines = [f'extern "C" {{ alignas(1024) {kind} {_ROOM}[{MOST_SHARED}]; }}']
    for number, symbol in enumerate(_SHARED_ARRAY.findall(_readelf(kernels))):
        named = f'__asm__("{symbol}") __attribute__((alias("{_ROOM}")))'
        lines.append(f"extern {kind} {_ROOM}_{number}[{MOST_SHARED}] {named};")
    return "\n".join(lines) + "\n"


def _compile(source: CudaSource, folder: Path, *words: str) -> Path:
    """Calls the compiler in a folder; the file that the last word names."""
    environment = {**os.environ, "LC_ALL": "C"}  # its messages are parsed
    command = [_compiler()[0], *words]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise TargetFailure(f"{source.path.name} does not compile for the CPU: {compile_errors(ran.stderr)}")
    return folder / words[-1]


def _compiler() -> tuple[str, str]:
    """The path of g++, and its version."""
    found = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("g++")
    if found is None or shutil.which("readelf") is None:
        raise TargetFailure(
            "CUDA kernels run on a CPU through a C++ compiler, and there is no g++ on the PATH with binutils",
            "install it (Debian, Ubuntu: apt install g++), or use a GPU with --device cuda",
        )
    version = _version(found)
    if "clang" in version:
        raise TargetFailure(f"CUDA kernels run on a CPU through GNU's g++, and {found} is {version}", "set CXX")
    return found, version


@functools.cache
def _version(compiler: str) -> str:
    printed = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return printed.partition("\n")[0]


def _cached(stem: str, suffix: str, words: Iterable[str], make: Callable[[Path], Path]) -> Path:
    """A compiled file, made once for each content of words, in a folder that is removed then."""
    own = sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h"), *HERE.glob("include/*")])
    text = chr(0).join([_compiler()[1], *words, *(file.read_text() for file in own)])
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = _writable(Path(os.environ.get("GRADPROBE_CACHE_DIR") or f"{base}/gradprobe", "cuda-on-cpu"))
    file = cache / f"{stem}{hashlib.sha256(text.encode()).hexdigest()[:24]}{suffix}"
    if not file.is_file():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            os.replace(make(Path(folder)), file)
    return file


@functools.cache
def _writable(folder: Path) -> Path:
    """A folder; where nothing can be written there, one of this process alone."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="gradprobe-cuda-"))
