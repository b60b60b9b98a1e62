"""Compiles a CUDA source with its options to a library for this CPU, once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from ....model.failures import TargetFailure
from ..source import CudaSource, compile_errors, launching_functions, with_launches

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
ROOM = "gp_room"
CALLERS = "what is called from Python"
"""The file of the functions that call kernels, as errors name it: its lines are nobody's."""
# The bytes between two arrays, so that a store behind the end of one does not reach the next.
_GAP = 4096
_ZEROS = re.compile(r"^\t\.size\t(\S+), (\d+)\n\1:\n\t\.zero\t\2\n", re.MULTILINE)


def built(source: CudaSource, kernels: tuple[str, ...], *, has_host: bool) -> Path:
    """The library of a source: of its kernels, in the order of their numbers, and of its host code.

    It raises TargetFailure where there is no g++, no CPU can run the source, or it does not compile.
    """
    unsupported = source.unsupported_on_a_cpu()
    if unsupported:
        raise TargetFailure(f"a CPU cannot run {unsupported}", "run it on a GPU, or take that out")
    text = _text(source, kernels, has_host=has_host)
    words = (text, *_WATCHED, *source.include, *(included for _, included in source.included))
    make = functools.partial(_build, source, text, has_host=has_host)
    return _cached(f"{source.path.stem}-", ".so", words, make)


def _cached(stem: str, suffix: str, words: Iterable[str], make: Callable[[Path], Path]) -> Path:
    """A compiled file, made once for each content of words, in a folder that is removed then."""
    own = sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h"), *HERE.glob("include/*")])
    text = chr(0).join((_compiler()[1], *words, *(file.read_text() for file in own)))
    file = _cache() / f"{stem}{hashlib.sha256(text.encode()).hexdigest()[:24]}{suffix}"
    if not file.is_file():
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            os.replace(make(Path(folder)), file)
    return file


def _text(source: CudaSource, kernels: tuple[str, ...], *, has_host: bool) -> str:
    """What g++ compiles: the source with its macros, its own name and lines, and functions that call each kernel."""
    header = "gradprobe_host.h" if has_host else "gradprobe_cuda.h"
    lines = [f'#include "{header}"', *(f"#define {name} {value}" for name, value in source.defines)]
    lines.append(f'#line 1 "{source.path}"')
    lines.append(with_launches(source.text) if has_host else source.of_kernels)
    lines.append(f'#line 1 "{CALLERS}"')
    lines += (f"using namespace {name};" for name in source.namespaces)
    for number, name in enumerate(kernels):
        lines.append(
            f'extern "C" void gp_kernel_{number}(void** arguments) {{ gp_call(&{name}, arguments); }}\n'
            f'extern "C" int gp_describe_{number}(gp_parameter* out) {{ return gp_describe(&{name}, out); }}'
        )
    if has_host:
        for name in launching_functions(source.text):
            call = f"return gp_call_host(&{name}, arguments);"
            lines.append(f'extern "C" int gp_host_{name}(void** arguments) {{ {call} }}')
    return "\n".join(lines) + "\n"


def readelf(file: Path, *options: str) -> str:
    """The symbols of an object or a library, by binutils, as g++ needs them."""
    words = ["readelf", "--symbols", "--wide", *options, str(file)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def _arrays(kernels: Path) -> str:
    """Defines the dynamic shared memory, to which every `extern __shared__` array is an alias: what kernels lack."""
    kind = "thread_local unsigned char"
    lines = [f'extern "C" {{ alignas(1024) {kind} {ROOM}[{MOST_SHARED}]; }}']
    for number, symbol in enumerate(re.findall(r" TLS +GLOBAL +DEFAULT +UND +(\S+)$", readelf(kernels), re.MULTILINE)):
        named = f'__asm__("{symbol}") __attribute__((alias("{ROOM}")))'
        lines.append(f"extern {kind} {ROOM}_{number}[{MOST_SHARED}] {named};")
    return "\n".join(lines) + "\n"


def _build(source: CudaSource, text: str, folder: Path, *, has_host: bool) -> Path:
    (folder / "kernels.cpp").write_text(text)
    include = [f"-iquote{source.path.parent}", *(f"-I{entry}" for entry in source.include)]
    exceptions = [] if has_host else ["-fno-exceptions"]  # which no GPU knows
    assembly = _compile(source, [*_WATCHED, *exceptions, *include, "-S", "kernels.cpp", "-o", "kernels.s"], folder)
    # Shared arrays have no values: a gap follows each array of zeros.
    assembly.write_text(_ZEROS.sub(rf"\g<0>\t.zero\t{_GAP}\n", assembly.read_text()))
    kernels = _compile(source, ["-c", "kernels.s", "-o", "kernels.o"], folder)
    (folder / "arrays.cpp").write_text(_arrays(kernels))
    _compile(source, [*_RUNTIME, "-c", "arrays.cpp", "-o", "arrays.o"], folder)
    compiling = [*_RUNTIME, "-c", str(HERE / "runtime.cpp"), "-o", "runtime.o"]
    make = functools.partial(_compile, source, compiling)
    runtime = _cached("runtime-", ".o", _RUNTIME, make)  # once for all sources
    objects = ["kernels.o", "arrays.o", str(runtime)]
    return _compile(source, ["-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs", *objects, "-o", "library.so"], folder)


def _compile(source: CudaSource, words: list[str], folder: Path) -> Path:
    """Calls the compiler in a folder; the file that the last word names."""
    environment = {**os.environ, "LC_ALL": "C"}  # its messages are parsed
    command = [_compiler()[0], *words]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        braces = re.findall(r"^(\S[^:\n]*):(\d+):\d+: note: to match this '\{'$", ran.stderr, re.MULTILINE)
        found = [f"{Path(file).name}:{line}: a brace is opened here and not closed" for file, line in braces]
        undefined = re.findall(r"undefined reference to `(.+)'", ran.stderr)
        found += [f"{name} is declared and nowhere defined" for name in undefined]
        errors = compile_errors(ran.stderr, found)
        raise TargetFailure(f"{source.path.name} does not compile for the CPU: {errors}")
    return folder / words[-1]


@functools.cache
def _compiler() -> tuple[str, str]:
    """The path of g++, and its version."""
    found = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("g++")
    if found is None:
        raise TargetFailure(
            "CUDA kernels run on a CPU through a C++ compiler, and there is no g++ on the PATH",
            "install it (Debian, Ubuntu: apt install g++), or use a GPU with --device cuda",
        )
    printed = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    version = printed.partition("\n")[0]
    if "clang" in printed:
        raise TargetFailure(f"CUDA kernels run on a CPU through GNU's g++, and {found} is {version}", "set CXX")
    return found, version


def _cache() -> Path:
    """The folder of compiled libraries."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return _writable(Path(os.environ.get("GRADPROBE_CACHE_DIR") or f"{base}/gradprobe", "cuda-on-cpu"))


@functools.cache
def _writable(folder: Path) -> Path:
    """A folder; where nothing can be written there, one of this process alone."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="gradprobe-cuda-"))
