"""Compiles a CUDA source with its options to a library for this CPU, once."""

from __future__ import annotations

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
from ..kernel import first_errors
from ..source import Unit, host_code, launching_functions, with_launches

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
WRAPPER = "gradprobe_kernels.cpp"
"""The file that includes a source and calls its kernels: its lines are nobody's."""
# The bytes between two arrays, so that a store behind the end of one does not reach the next.
_GAP = 4096
_ZEROS = re.compile(r"^\t\.size\t(\S+), (\d+)\n\1:\n\t\.zero\t\2\n", re.MULTILINE)


def built(unit: Unit, instances: tuple[str, ...]) -> Path:
    """The library of a unit's kernels and of these instances of its templates.

    Raises:
        TargetFailure: there is no g++, no CPU can run the source, or it does not compile.
    """
    unsupported = unit.source.unsupported_on_a_cpu()
    if unsupported:
        raise TargetFailure(f"a CPU cannot run {unsupported}", "run it on a GPU, or take that out")
    wrapper = _wrapper(unit, instances)
    words = (wrapper, *_WATCHED, *unit.include, unit.source.key)
    return _cached(f"{unit.source.path.stem}-", ".so", words, functools.partial(_build, unit, wrapper))


def _cached(stem: str, suffix: str, words: Iterable[str], make: Callable[[Path], Path]) -> Path:
    """A compiled file, made once for each content of words, in a folder that is removed then."""
    text = chr(0).join((_version(), *words, *_own_texts()))
    file = _cache() / f"{stem}{hashlib.sha256(text.encode()).hexdigest()[:24]}{suffix}"
    if not file.is_file():
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            os.replace(make(Path(folder)), file)
    return file


def kernel_symbol(number: int) -> str:
    return f"gp_kernel_{number}"


def host_symbol(function: str) -> str:
    return f"gp_host_{function}"


def names_of(unit: Unit, instances: tuple[str, ...]) -> tuple[str, ...]:
    """The kernels of a library, in the order of their numbers."""
    return (*unit.source.kernels, *instances)


def _wrapper(unit: Unit, instances: tuple[str, ...]) -> str:
    """What g++ compiles: the source with its macros, and a function that calls each kernel."""
    header = "gradprobe_host.h" if unit.has_host else "gradprobe_cuda.h"
    lines = [f'#include "{header}"', *(f"#define {name} {value}" for name, value in unit.defines)]
    if host_code(unit.source.text):
        # With the file's own name and lines.
        text = with_launches(unit.source.text) if unit.has_host else unit.source.of_kernels
        lines.append(f'#line 1 "{unit.source.path}"\n{text}\n#line 1 "{WRAPPER}"')
    else:
        lines.append(f'#include "{unit.source.path}"')
    lines += (f"using namespace {name};" for name in unit.source.namespaces)
    for number, name in enumerate(names_of(unit, instances)):
        lines.append(
            f'extern "C" void {kernel_symbol(number)}(void** arguments) {{ gp_call(&{name}, arguments); }}\n'
            f'extern "C" int gp_describe_{number}(gp_parameter* out) {{ return gp_describe(&{name}, out); }}'
        )
    lines += (
        f'extern "C" int {host_symbol(name)}(void** arguments) {{ return gp_call_host(&{name}, arguments); }}'
        for name in (launching_functions(unit.source.text) if unit.has_host else ())
    )
    if unit.has_host:
        lines.append('extern "C" void gp_set_python(const gp_host* python) { gp_python = *python; }')
    return "\n".join(lines) + "\n"


def readelf(file: Path, *options: str) -> str:
    """The symbols of an object or a library.

    Raises:
        TargetFailure: there is no readelf, or it cannot read the file.
    """
    words = ["readelf", "--symbols", "--wide", *options, str(file)]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise TargetFailure(f"readelf (of binutils, as g++ is) cannot read {file}: {error}") from error


def _arrays(kernels: Path) -> str:
    """Defines the dynamic shared memory, to which every `extern __shared__` array is an alias: what kernels lack."""
    kind = "thread_local unsigned char"
    lines = [f'extern "C" {{ alignas(1024) {kind} {ROOM}[{MOST_SHARED}]; }}']
    for number, symbol in enumerate(re.findall(r" TLS +GLOBAL +DEFAULT +UND +(\S+)$", readelf(kernels), re.MULTILINE)):
        named = f'__asm__("{symbol}") __attribute__((alias("{ROOM}")))'
        lines.append(f"extern {kind} {ROOM}_{number}[{MOST_SHARED}] {named};")
    return "\n".join(lines) + "\n"


def _build(unit: Unit, wrapper: str, folder: Path) -> Path:
    (folder / WRAPPER).write_text(wrapper)
    include = [f"-iquote{unit.source.path.parent}", *(f"-I{entry}" for entry in unit.include)]
    exceptions = [] if unit.has_host else ["-fno-exceptions"]  # which no GPU knows
    _compile(unit, [*_WATCHED, *exceptions, *include, "-S", WRAPPER, "-o", "kernels.s"], folder)
    # Shared arrays have no values: a gap follows each array of zeros.
    apart = _ZEROS.sub(rf"\g<0>\t.zero\t{_GAP}\n", (folder / "kernels.s").read_text())
    (folder / "kernels.s").write_text(apart)
    _compile(unit, ["-c", "kernels.s", "-o", "kernels.o"], folder)
    (folder / "arrays.cpp").write_text(_arrays(folder / "kernels.o"))
    _compile(unit, [*_RUNTIME, "-c", "arrays.cpp", "-o", "arrays.o"], folder)
    compiling = [*_RUNTIME, "-c", str(HERE / "runtime.cpp"), "-o", "runtime.o"]
    runtime = _cached("runtime-", ".o", _RUNTIME, functools.partial(_compile, unit, compiling))  # once for all sources
    objects = ["kernels.o", "arrays.o", str(runtime)]
    return _compile(unit, ["-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs", *objects, "-o", "library.so"], folder)


def _compile(unit: Unit, words: list[str], folder: Path) -> Path:
    """Calls the compiler in a folder; the file that the last word names."""
    # Its messages are parsed, so they must be in English with ASCII quotes.
    told = {**os.environ, "LC_ALL": "C"}
    ran = subprocess.run([_compiler(), *words], cwd=folder, env=told, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise TargetFailure(f"{unit.source.path.name} does not compile for the CPU: {_errors(ran.stderr)}")
    return folder / words[-1]


def _errors(printed: str) -> str:
    """The first errors, with the lines of the file; the end of the output where there is no error in it."""
    open_braces = re.findall(r"^(\S[^:\n]*):(\d+):\d+: note: to match this '\{'$", printed, re.MULTILINE)
    found = [f"{Path(file).name}:{line}: a brace is opened here and not closed" for file, line in open_braces]
    for match in re.finditer(r"^(\S[^:\n]*):(\d+)(?::\d+)?: (?:fatal )?error: (.*)$", printed, re.MULTILINE):
        file, line, words = match.groups()
        words = words.removeprefix("#error ").strip('"')
        # Instances that Python asks for stand in a file of ours.
        place = "what is called from Python" if file == WRAPPER else f"{Path(file).name}:{line}"
        found.append(words if words.startswith("gradprobe: ") else f"{place}: {words}")
    undefined = re.findall(r"undefined reference to `(.+)'", printed)
    found += [f"{name} is declared and nowhere defined" for name in undefined]
    return first_errors(found, printed)


@functools.cache
def _compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("g++")
    if found is None:
        raise TargetFailure(
            "CUDA kernels run on a CPU through a C++ compiler, and there is no g++ on the PATH",
            "install it (Debian, Ubuntu: apt install g++), or use a GPU with --device cuda",
        )
    return found


@functools.cache
def _version() -> str:
    ran = subprocess.run([_compiler(), "--version"], capture_output=True, text=True, check=False)
    first = ran.stdout.partition("\n")[0]
    if "clang" in ran.stdout:
        raise TargetFailure(f"CUDA kernels run on a CPU through GNU's g++, and {_compiler()} is {first}", "set CXX")
    return first


@functools.cache
def _own_texts() -> tuple[str, ...]:
    return tuple(file.read_text() for file in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h"), *HERE.glob("include/*")]))


def _cache() -> Path:
    """The folder of compiled libraries; where it cannot be written, a folder of this process alone."""
    base = os.environ.get("GRADPROBE_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gradprobe"
    )
    folder = Path(base) / "cuda-on-cpu"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder if os.access(folder, os.W_OK) else _own_folder()
    except OSError:
        return _own_folder()


@functools.cache
def _own_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="gradprobe-cuda-"))
