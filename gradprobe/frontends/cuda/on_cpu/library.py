"""A CUDA source compiled to a library for this CPU."""

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
from typing import Any

from ....inputs.memory import Elements, bracketed, elements_of
from ....model.failures import TargetFailure
from ....source.syntax import SourceLine
from ..c_types import NUMBERS, POINTER, ParameterType, structures
from ..source import CudaSource, compile_errors

HERE = Path(__file__).parent
STRUCTURES = structures((HERE / "runtime.h").read_text())
_TYPES = {number._type_: number for number in NUMBERS.values()}
# -O1 keeps each access at its line, and frame pointers show the calls that led there. Findings need lines, and
# addr2line of binutils 2.40 mixes up the files of DWARF 5. Where a structure is read to be passed by value, as a
# __half is, g++ watches the read only if the function that takes it is inlined. A template's shared array would be a
# unique symbol: one for all libraries of a process, though each further instance makes another library.
_WATCHED = """
    -std=c++17 -O1 -gdwarf-4 -fPIC -fsanitize=thread,alignment -fno-extern-tls-init -w -ffp-contract=off
    -fno-omit-frame-pointer --param tsan-instrument-func-entry-exit=0 -finline-small-functions
    -fno-semantic-interposition --param early-inlining-insns=100 -fno-gnu-unique
"""
# The dynamic shared memory of a block on a Hopper GPU. Other GPUs have less.
MOST_SHARED = 227 << 10
# Its symbol in the runtime, for which every `extern __shared__` array is another name.
ROOM = "gp_room"
_RUNTIME = f"-std=c++17 -O2 -fPIC -fno-omit-frame-pointer -DGP_MOST_SHARED={MOST_SHARED}".split()
# The file of the functions that call kernels, as errors name it: its lines are nobody's.
_CALLERS = "what is called from Python"
_run = functools.partial(subprocess.run, capture_output=True, text=True)
_ZEROS = re.compile(r"^\t\.size\t(\S+), (\d+)\n\1:\n\t\.zero\t\2\n", re.MULTILINE)
# Symbols that are no array of the source: in the library, and in its shared memory.
_BESIDE_ARRAYS = ("gradprobe_runtime::", "guard variable", "TLS ")
_OF_THE_COMPILER = (*_BESIDE_ARRAYS, "completed.", "_", "DW.ref.", "typeinfo")


@dataclass(frozen=True)
class NamedArray:
    # "" for the compiler's own data.
    name: str
    is_shared: bool = False
    start: int = 0  # before a launch from its gp_place
    bytes: int = 0
    element: int = 0  # in bytes; 0 where that is not known
    tensor: Any = None

    def where(self, address: int, accessed: int, *, is_inside: bool) -> str:
        unit = self.element or max(1, accessed)
        offset = (address - self.start) // unit
        elements = Elements((self.bytes // unit,), (1,), unit)
        if self.tensor is not None:
            elements = elements_of(self.tensor)
        elif is_inside and elements.count < 2:
            return ""
        return bracketed(elements.index(offset)) if is_inside else elements.beyond(offset)


class Library:
    def __init__(self, file: Path, kernels: list[str]) -> None:
        try:
            self.loaded = ctypes.CDLL(str(file))
        except OSError as error:
            raise TargetFailure(f"a CUDA source's library cannot be loaded: {error}") from error
        self.where = self.loaded.gp_where
        self.where.restype = STRUCTURES["gp_place"]
        self._file, self._kernels, self.arrays = file, kernels, tuple(_arrays_in(file))
        self._lines: dict[int, tuple[SourceLine, ...]] = {}

    def kernel(self, name: str) -> tuple[int, list[ParameterType]]:
        number, out = self._kernels.index(name), (STRUCTURES["gp_parameter"] * 256)()
        caller = ctypes.cast(getattr(self.loaded, f"gp_kernel_{number}"), POINTER).value or 0
        types = list[ParameterType]()
        for each in out[: getattr(self.loaded, f"gp_describe_{number}")(out)]:
            types.append(each.of if each.type == b"P" else _TYPES.get(each.type.decode()))
        return caller, types

    def lines(self, addresses: Sequence[int]) -> dict[int, tuple[SourceLine, ...]]:
        # A return address is the address of the instruction after the call.
        if asked := [hex(address - 1) for address in {*addresses} - self._lines.keys()]:
            words = ("addr2line", "--addresses", "--inlines", "--exe", str(self._file), *asked)
            for part in re.split("^0x", _run(words, check=True).stdout, flags=re.MULTILINE)[1:]:
                address, *places = part.splitlines()
                self._lines[int(address, 16) + 1] = tuple(_lines_in(places))
        return {address: self._lines.get(address, ()) for address in addresses}


def _lines_in(places: Iterable[str]) -> Iterator[SourceLine]:
    for place in places:
        file, _, number = place.partition(" (")[0].rpartition(":")
        is_own = Path(file).name == _CALLERS or Path(file).resolve().is_relative_to(HERE)
        if file and number.isdigit() and not is_own:
            linecache.checkcache(file)
            yield SourceLine(file, int(number), linecache.getline(file, int(number)).strip())


def _symbols(file: Path, *options: str) -> Iterator[tuple[str, int, int, bool]]:
    words = ("nm", "--format=sysv", *options, str(file))
    for line in _run(words, check=True).stdout.splitlines():
        name, *fields = map(str.strip, line.rsplit("|", 6))
        if len(fields) == 6 and fields[2] in ("OBJECT", "TLS"):
            yield name, int(fields[0] or "0", 16), int(fields[3] or "0", 16), fields[2] == "TLS"


def _arrays_in(file: Path) -> Iterable[NamedArray]:
    found: dict[tuple[int, bool], NamedArray] = {}
    for symbol, at, size, is_shared in _symbols(file, "--demangle", "--defined-only"):
        if not size or (not is_shared and symbol.startswith(_OF_THE_COMPILER)):
            continue
        # `kernel<4>(float*, int)::tile`: tile
        name = re.sub(r"(\[abi:\w+\]|\.\d+)$", "", symbol.rpartition("::")[2])
        name = "" if symbol.startswith(_BESIDE_ARRAYS) else name
        if name or (at, is_shared) not in found:
            found[at, is_shared] = NamedArray(name, is_shared, at, size)
    return found.values()


@functools.cache
def library_of(source: CudaSource, instance: str = "", *, has_host: bool = False) -> Library:
    if why := source.unsupported_on_a_cpu():
        raise TargetFailure(f"a CPU cannot run {why}", "run it on a GPU, or take that out")
    kernels = source.kernels(instance)
    text = _text(source, kernels, has_host=has_host)
    folders = [f"-I{HERE / 'include'}", f"-iquote{source.path.parent}"]
    options = [*_WATCHED.split(), *folders, *map("-I{}".format, source.folders)]
    options += [] if has_host else ["-fno-exceptions"]
    words = (text, *options, *(included for _, included in source.included))
    make = functools.partial(_build, source.path.name, text, options)
    return Library(_cached(f"{source.path.stem}-", ".so", words, make), kernels)


# --- How it is compiled


def _text(source: CudaSource, kernels: Sequence[str], *, has_host: bool) -> str:
    lines = [f'#include "gradprobe_{"host" if has_host else "cuda"}.h"']
    lines += [f"#define {name} {value}" for name, value in source.defines]
    lines.append(f'#line 1 "{source.path}"')
    lines.append(source.with_launches if has_host else source.of_kernels)
    lines += [f'#line 1 "{_CALLERS}"', source.using, 'extern "C" {']
    for at, name in enumerate(kernels):  # any other name may be that of a kernel
        of_it = f"(&{name}, gp_a); }}"
        lines.append(f"void gp_kernel_{at}(void** gp_a) {{ gp_call{of_it}")
        lines.append(f"int gp_describe_{at}(gp_parameter* gp_a) {{ return gp_describe{of_it}")
    for name in source.launchers if has_host else ():
        call = f"gp_call_host(&{name}, gp_a)"
        lines.append(f"int gp_host_{name}(void** gp_a) {{ return {call}; }}")
    return "\n".join([*lines, "}\n"])


def _build(name: str, text: str, options: Sequence[str], folder: Path) -> Path:
    compiled = functools.partial(_compile, name, folder)
    (folder / "kernels.cpp").write_text(text)
    assembly = compiled(*options, "-S", "kernels.cpp", "-o", "kernels.s")
    # Shared arrays have no values. A gap after each array of zeros keeps a store behind its end off the next.
    assembly.write_text(_ZEROS.sub(r"\g<0>\t.zero\t4096\n", assembly.read_text()))
    kernels = compiled("-c", "kernels.s", "-o", "kernels.o")
    linked = ["-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs"]
    for symbol, *_, is_shared in _symbols(kernels, "--undefined-only"):
        linked += [f"-Wl,--defsym,{symbol}={ROOM}"] if is_shared else []

    def make(other: Path) -> Path:
        words = (*_RUNTIME, "-c", str(HERE / "runtime.cpp"), "-o", "runtime.o")
        return _compile(name, other, *words)

    runtime = str(_cached("runtime-", ".o", _RUNTIME, make))
    return compiled(*linked, "kernels.o", runtime, "-o", "library.so")


def _compile(name: str, folder: Path, *words: str) -> Path:
    english = {**os.environ, "LC_ALL": "C"}  # its messages are parsed
    ran = _run([_compiler()[0], *words], check=False, cwd=folder, env=english)
    if ran.returncode:
        raise TargetFailure(f"{name} does not compile for the CPU: {compile_errors(ran.stderr)}")
    return folder / words[-1]


def _compiler() -> tuple[str, str]:
    found = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("g++")
    if found is None or shutil.which("nm") is None:
        words = "CUDA kernels run on a CPU by g++: there is no g++ on the PATH with binutils"
        way_out = "apt install g++, or --device cuda on a GPU"
        raise TargetFailure(words, way_out)
    version = _run([found, "--version"], check=False).stdout.partition("\n")[0]
    if "clang" in version:
        words = f"CUDA kernels run on a CPU by GNU's g++: {found} is {version}"
        raise TargetFailure(words, "set CXX")
    return found, version


def _cached(stem: str, suffix: str, words: Iterable[str], make: Callable[[Path], Path]) -> Path:
    own = sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h"), *HERE.glob("include/*")])
    text = chr(0).join([_compiler()[1], *words, *map(Path.read_text, own)])
    usual = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    own_cache = os.environ.get("GRADPROBE_CACHE_DIR") or f"{usual}/gradprobe"
    cache = _writable(Path(own_cache, "cuda-on-cpu"))
    file = cache / f"{stem}{hashlib.sha256(text.encode()).hexdigest()[:24]}{suffix}"
    if not file.is_file():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            os.replace(make(Path(folder)), file)
    return file


@functools.cache
def _writable(folder: Path) -> Path:
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    is_open = os.access(folder, os.W_OK)
    return folder if is_open else Path(tempfile.mkdtemp(prefix="gradprobe-cuda-"))
