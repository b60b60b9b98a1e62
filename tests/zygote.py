"""Starts the Python programs of tests by fork from a process that has imported torch, which takes 2 s of each anew.

After `install()`, `subprocess.Popen` asks a zygote, a process that has imported what they import and run nothing, to
fork. The fork becomes a child of whoever asked, with the descriptors, environment, folder and search path that it was
to have, and has a zygote of its own for what it starts in turn. Every other command is started as ever, and so is a
program whose options, environment or folders would change how Python starts or what it imports. Tests in which the
start is the point use the fixture `real_processes`; at night no test uses this.
"""

import atexit
import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import pickle
import pkgutil
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

ROOT = str(Path(__file__).resolve().parents[1])
RealPopen = subprocess.Popen
# What most programs import. Torch loads its symbolic shapes, a second's work, at the first gradient.
_PLAIN = ("numpy", "torch", "torch.fx.experimental.symbolic_shapes", "pytest")
# Not imported before gradprobe's own programs: they stand beside it, or belong in programs of other kinds.
_APART = {"kernels", "reference", "adapters", "templates", "testing", "child", "startup"}
# Python or a library reads these when it starts, so that they must be for a program as they are for the zygote.
_READ_AT_START = re.compile(
    "PYTHON|LC_|LANG|LD_|MKL_|OPENBLAS|G?OMP_|KMP_|TORCH(?!INDUCTOR)|TRITON_INTERPRET"
)
# Those that a fork can still take over.
_ONES = {"TRITON_INTERPRET", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
_TAKEN_OVER = {"PYTHONPATH", "PYTHONIOENCODING", *_ONES}
# What releases of typer that have it load with the first command.
_LATE = ["typer._adapters"] if importlib.util.find_spec("typer._adapters") else []
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None).prctl
# Of a message, in bytes and in descriptors; and the number from which on a descriptor is in nobody's way.
_LONGEST, _MOST, _HIGH = 1 << 18, 64, 700


class Request(NamedTuple):
    """A program to start: its command after the interpreter, and what is to be so; with it its descriptors are sent."""

    words: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    numbers: tuple[int, ...]  # that the descriptors are to have
    session: bool  # whether it begins one
    warm: bool  # whether it may find Triton and gradprobe imported


class Program(NamedTuple):
    """What Python is asked to run."""

    kind: str  # -c, -m or file
    what: str
    arguments: tuple[str, ...]
    unbuffered: bool


@dataclass
class Zygote:
    """This side of a zygote."""

    stream: socket.socket
    environment: Mapping[str, str]
    warm: bool
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, request: Request, descriptors: list[int]) -> int:
        """Starts a program as a child of this process, and returns its number."""
        with self._lock, _inheriting_orphans():
            socket.send_fds(self.stream, [pickle.dumps(tuple(request))], descriptors)
            return int(self.stream.recv(64))


@contextlib.contextmanager
def _inheriting_orphans() -> Iterator[None]:
    """While open, a process below this one whose parent ends becomes a child of this one."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


_zygote: Zygote | None = None
_environment: dict[str, str] = {}
# Where Python looks for modules when nobody says more; the modules there, and those that Python looks for at its start.
_path: list[str] = []
_names: set[str] = set()


def install() -> None:
    """From now on `subprocess.Popen` starts Python by fork where that comes to the same."""
    _environment.update(os.environ)
    subprocess.Popen = Popen


class Popen(RealPopen):
    """A process that is forked off the zygote where that comes to the same."""

    def _execute_child(self, *arguments: Any) -> None:
        call = inspect.signature(RealPopen._execute_child).bind(self, *arguments).arguments
        asked = _asked(call)
        if asked is None:
            super()._execute_child(*arguments)
            return
        zygote, request = asked
        own = [number if given == -1 else given for number, given in enumerate(_streams(call))]
        self.pid = zygote.start(request, [*own, *call["pass_fds"]])
        self._child_created = True
        ends = itertools.product(("p2c", "c2p", "err"), ("read", "write"))
        self._close_pipe_fds(*(call[f"{name}{end}"] for name, end in ends))


def _streams(call: Mapping[str, Any]) -> tuple[int, int, int]:
    return call["p2cread"], call["c2pwrite"], call["errwrite"]


_USUAL = {
    "preexec_fn": None, "close_fds": True, "shell": False, "gid": None, "gids": None, "uid": None, "umask": -1,
    "process_group": -1,
}  # fmt: skip


def _asked(call: Mapping[str, Any]) -> tuple[Zygote, Request] | None:
    """The zygote and the request to it; None where the program must be started as ever."""
    is_one_word = isinstance(call["args"], (str, bytes, os.PathLike))
    if is_one_word or call["executable"] not in (None, sys.executable):
        return None
    command = [os.fspath(word) for word in call["args"]]
    is_usual = all(call.get(name, value) == value for name, value in _USUAL.items())
    if command[:1] != [sys.executable] or not is_usual:
        return None
    program, folder = _program(command[1:]), os.path.abspath(call["cwd"] or os.getcwd())
    environment = dict(os.environ if call["env"] is None else call["env"])
    asks_what_is_imported = program is not None and "sys.modules" in program.what
    if program is None or asks_what_is_imported or not os.path.isdir(folder):
        return None
    zygote = _started()
    warm = _is_gradprobe(program) and environment.get("TRITON_INTERPRET") == "1"
    if (zygote.warm and not warm) or not _starts_alike(zygote, environment):
        return None
    if any(map(_hides_a_module, _search_path(program, environment, folder))):
        return None
    words, numbers = tuple(command[1:]), (0, 1, 2, *call["pass_fds"])
    session = bool(call["start_new_session"])
    return zygote, Request(words, environment, folder, numbers, session, warm)


def _program(words: list[str]) -> Program | None:
    """None for options that a fork cannot take over."""
    unbuffered = words[:1] == ["-u"]
    first, *rest = [*words[unbuffered:], ""]
    if first in ("-c", "-m"):
        return Program(first, rest[0], tuple(rest[1:-1]), unbuffered)
    if first.startswith("-m"):
        return Program("-m", first[2:], tuple(rest[:-1]), unbuffered)
    is_file = first and not first.startswith("-")
    return Program("file", first, tuple(rest[:-1]), unbuffered) if is_file else None


def _is_gradprobe(program: Program) -> bool:
    if program.kind != "-c":
        return os.path.basename(program.what) == "gradprobe"
    own = ("from gradprobe.processes.child import main", "from gradprobe.cli import main; ")
    return any(words in program.what for words in own)


def _starts_alike(zygote: Zygote, environment: Mapping[str, str]) -> bool:
    """Whether Python and its libraries start as the zygote did, but for what a fork takes over."""
    read = set(filter(_READ_AT_START.match, (*zygote.environment, *environment))) - _TAKEN_OVER
    alike = all(zygote.environment.get(name) == environment.get(name) for name in read)
    return alike and {environment.get(name) for name in _ONES} <= {"1", None}


def _search_path(program: Program, environment: Mapping[str, str], folder: str) -> set[str]:
    """The folders in which modules are looked for before Python's own."""
    said = [*environment.get("PYTHONPATH", "").split(os.pathsep)]
    if program.kind == "file":
        said.append(os.path.dirname(program.what))
    elif program.kind == "-c" and _is_gradprobe(program):  # its arguments are its path
        is_list = program.arguments[0][:1] == "["
        said += json.loads(program.arguments[0]) if is_list else program.arguments[3:]
    else:
        said.append("")
    return {os.path.normpath(os.path.join(folder, entry)) for entry in said}


def _hides_a_module(folder: str) -> bool:
    """Whether the folder has a module of its own where the zygote has imported another."""
    if folder in (ROOT, *_path) or not os.path.isdir(folder):
        return False
    files = [*Path(folder).glob("*.py"), *Path(folder).glob("*.so")]
    modules = {file.name.partition(".")[0] for file in files}
    modules |= {file.parent.name for file in Path(folder).glob("*/__init__.py")}
    return not _names.isdisjoint(modules)


def _started() -> Zygote:
    """The zygote of this process, which starts when it is first asked for."""
    global _zygote  # noqa: PLW0603 - one for each process
    if _zygote is None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"import sys; sys.path[0] = {ROOT!r}; from tests.zygote import main; main({theirs.fileno()})"
        own = {name: value for name, value in _environment.items() if name not in _TAKEN_OVER}
        process = RealPopen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT,
            env={**own, "OMP_NUM_THREADS": "1"}, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        _path[:], names = pickle.loads(ours.recv(_LONGEST))
        _names.update(names)
        _zygote = Zygote(ours, own, warm=False)
        atexit.register(lambda: (ours.close(), process.wait()))
    return _zygote


# The zygote's side


def _warm() -> list[str]:
    """What gradprobe imports besides where Triton interprets: Triton, and all of its own modules."""
    own = list[str]()
    for file in sorted(Path(ROOT, "gradprobe").rglob("[a-z]*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        own += [] if _APART & {*parts[:-1]} else [".".join(parts)]
    return ["triton.language", "triton.runtime.interpreter", *own, *_LATE]


def main(descriptor: int) -> None:
    """Imports, and serves until the other end is closed. It returns in a fork, whose program has come to its end."""
    _path[:] = sys.path[1:]
    for name in _PLAIN:
        importlib.import_module(name)
    stream = socket.socket(fileno=descriptor)
    _names.update(sys.stdlib_module_names, {"sitecustomize", "usercustomize", "gradprobe"})
    _names.update(module.name for module in pkgutil.iter_modules(_path))
    stream.send(pickle.dumps((_path, _names)))
    _serve(stream, warm=False)


def _serve(stream: socket.socket, *, warm: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    warmer: socket.socket | None = None
    while True:
        data, descriptors, _, _ = socket.recv_fds(stream, _LONGEST, _MOST)
        if not data:
            os._exit(0)
        request = Request(*pickle.loads(data))
        if request.warm and not warm:
            closed = [stream.fileno(), *descriptors]
            warmer = warmer or _forked_server(closed, warm=True, imports=_warm())
            socket.send_fds(warmer, [data], descriptors)
            answer = warmer.recv(64)
        elif number := _forked_away():
            answer = b"%d" % number
        else:
            _become(request, _moved(descriptors, stream))
        for descriptor in descriptors:
            os.close(descriptor)
        stream.send(answer)


def _forked_server(
    closed: list[int], *, warm: bool, imports: Sequence[str] = ()
) -> socket.socket:
    """A stream to a zygote forked off this process, which ends with it, and does not hold these descriptors open."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        return ours
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor in (ours.fileno(), *closed):
        os.close(descriptor)
    if warm:
        os.environ["TRITON_INTERPRET"] = "1"
    for name in imports:
        importlib.import_module(name)
    _serve(theirs, warm=warm)
    raise AssertionError("a zygote serves until it is killed")


def _forked_away() -> int:
    """Forks a process that whoever inherits orphans gets as its child. Returns its number, and 0 in itself."""
    reading, writing = os.pipe()
    if between := os.fork():
        os.close(writing)
        with open(reading) as file:
            number = int(file.read())
        os.waitpid(between, 0)
        return number
    between = os.getpid()
    if number := os.fork():
        os.write(writing, b"%d" % number)
        os._exit(0)
    os.close(reading)
    os.close(writing)
    while os.getppid() == between:
        time.sleep(0.0002)
    return 0


def _moved(descriptors: list[int], stream: socket.socket) -> list[int]:
    """The descriptors, out of the way of the numbers that they are to have. The stream is closed."""
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    stream.close()
    return moved


def _become(request: Request, descriptors: list[int]) -> None:
    """Runs the program in this fork, to its end: SystemExit, always."""
    if request.session:
        os.setsid()
    _begin_own_zygote(request, descriptors)
    for descriptor, number in zip(descriptors, request.numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    os.environ.setdefault("GRADPROBE_SHARED_BY", "2")  # other tests have the other cores
    program = _program(list(request.words))
    assert program is not None
    _open_streams(request.environment.get("PYTHONIOENCODING", ""), program.unbuffered)
    _find_as_new(program, request)
    try:
        _run(program)
    except SystemExit:
        raise
    except BaseException as error:
        _tell(error)
    sys.exit(0)


def _begin_own_zygote(request: Request, descriptors: list[int]) -> None:
    global _zygote  # noqa: PLW0603 - one for each process
    stream = _forked_server(descriptors, warm=request.warm)
    high = socket.socket(fileno=fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, _HIGH))
    stream.close()
    own = {name: value for name, value in request.environment.items() if name not in _TAKEN_OVER}
    _zygote = Zygote(high, own, request.warm)
    subprocess.Popen = Popen


def _open_streams(encoding: str, unbuffered: bool) -> None:
    """Makes sys.stdin, sys.stdout and sys.stderr of the descriptors 0, 1 and 2."""
    name, _, errors = encoding.partition(":")
    for number, told in enumerate(("stdin", "stdout", "stderr")):
        old, mode = getattr(sys, f"__{told}__"), "r" if number == 0 else "w"
        buffering = 0 if unbuffered and number else -1
        raw = open(number, f"{mode}b", buffering, closefd=False)  # noqa: SIM115
        stream = TextIOWrapper(
            raw, encoding=name or old.encoding, errors="backslashreplace" if number == 2 else errors or old.errors,
            newline=None if number == 0 else "\n", line_buffering=number == 2 or raw.isatty(),
            write_through=unbuffered,
        )  # fmt: skip
        stream.mode = mode
        setattr(sys, told, stream)
        setattr(sys, f"__{told}__", stream)


def _find_as_new(program: Program, request: Request) -> None:
    """The search path and the main module of a new process."""
    first = {"-c": "", "-m": os.getcwd()}.get(program.kind)
    first = os.path.dirname(os.path.abspath(program.what)) if first is None else first
    said = request.environment.get("PYTHONPATH")
    sys.path[:] = [first, *map(os.path.abspath, said.split(os.pathsep) if said else ()), *_path]
    sys.argv[:] = [{"file": program.what}.get(program.kind, program.kind), *program.arguments]
    sys.orig_argv[:] = [sys.executable, *request.words]
    sys.path_importer_cache.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")
    vars(sys.modules["__main__"])["__builtins__"] = builtins


def _run(program: Program) -> None:
    space = vars(sys.modules["__main__"])
    if program.kind == "-m":
        runpy._run_module_as_main(program.what)
    elif program.kind == "-c":
        exec(compile(program.what, "<string>", "exec"), space)
    else:
        space["__file__"] = program.what
        exec(compile(Path(program.what).read_bytes(), program.what, "exec"), space)


def _tell(error: BaseException) -> None:
    """What Python tells of an exception that nobody caught, and its exit code."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_globals.get("_tell") is _tell:
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    sys.stdout.flush()
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)
