"""A process that has imported what takes long and has run nothing, and from which further children are forked."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from . import child
from .child import search_path, surroundings
from .resource_limits import one_for_numpy

# Not -m: a file in the current folder with the name of a standard module would be imported in its place.
_START = (
    "import sys; number, prepare, argument, *sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from gradprobe.processes.warm import main; main(int(number), prepare, argument)"
)
_PR_SET_CHILD_SUBREAPER = 36
# Of a request, in bytes; and its descriptors: what a child answers on, where it writes, and where it tells its stack.
_LONGEST, _DESCRIPTORS = 1 << 16, 3
# As exact as the time of a file in bytecode, twice.
_SECOND = 2.0


@dataclass(frozen=True)
class ForkedChild:
    """A fork of a warm process that has become a child of this one: what Popen tells and does of it."""

    pid: int

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


@dataclass(frozen=True)
class _WarmProcess:
    """This side of a warm process."""

    process: subprocess.Popen[bytes]
    stream: socket.socket
    surroundings: tuple[object, ...]
    """What it has of this process."""

    def forked(self, words: Sequence[str], descriptors: Sequence[int]) -> ForkedChild | None:
        """A child that was told the words; None where the warm process is gone, or too late, and is ended."""
        try:
            with _inheriting_orphans():
                socket.send_fds(self.stream, [pickle.dumps(tuple(words))], list(descriptors))
                answer = self.stream.recv(64)
        except OSError:
            self.process.kill()
            return None
        return ForkedChild(int(answer)) if answer else None


WARM: list[_WarmProcess] = []


@contextlib.contextmanager
def warm_process(prepare: str, argument: str) -> Iterator[int]:
    """While open, children are forks of a process that was prepared once; its number.

    Args:
        prepare: "package.module:function", called there with the argument. It may import and choose, but may start no
            thread and use no device, since a fork has neither.
    """
    stream, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = (str(theirs.fileno()), prepare, argument, *search_path())
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", _START, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,  # Ctrl-C is for this process alone
    )
    theirs.close()
    stream.settimeout(child.START_LIMIT)  # it imports torch before it answers
    WARM.append(_WarmProcess(process, stream, surroundings()))
    try:
        yield process.pid
    finally:
        WARM.pop()
        stream.close()
        process.kill()
        process.wait()


def forked_from_warm(words: Sequence[str], descriptors: Sequence[int]) -> ForkedChild | None:
    """A child forked off the warm process; None where there is none, or it has other surroundings than this process."""
    warm = WARM[-1] if WARM and WARM[-1].surroundings == surroundings() else None
    return None if warm is None else warm.forked(words, descriptors)


@contextlib.contextmanager
def _inheriting_orphans() -> Iterator[None]:
    """While open, a process below this one whose parent ends becomes a child of this one."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


# The side of the warm process


def main(descriptor: int, prepare: str, argument: str) -> None:
    """Prepares, and forks a child for each request until the other end is closed. In a fork it serves as the child."""
    start = time.time()
    os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child.dies_with_parent()
    one_for_numpy()
    module, _, name = prepare.partition(":")
    getattr(importlib.import_module(module), name)(argument)
    gc.collect()
    gc.freeze()
    stream = socket.socket(fileno=descriptor)
    while True:
        data, descriptors, _, _ = socket.recv_fds(stream, _LONGEST, _DESCRIPTORS)
        if not data:
            os._exit(0)
        number = forked_away()
        if not number:
            break
        for each in descriptors:
            os.close(each)
        stream.send(b"%d" % number)
    stream.close()
    os.setsid()  # what it starts is killed with it, and nothing else
    _serve_as_child(descriptors, pickle.loads(data), start - _SECOND)


def _serve_as_child(descriptors: Sequence[int], words: Sequence[str], since: float) -> None:
    answers, writing, stacks = descriptors
    for standard in (1, 2):
        os.dup2(writing, standard)
    os.close(writing)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    importlib.invalidate_caches()
    _read_sources_anew(since)
    with_parent, early = words
    child.main(answers, stacks, with_parent == "True", early.split(","))


def forked_away() -> int:
    """Forks a process that whoever inherits orphans gets as its child. Returns its number, and 0 in itself."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns of threads, of which there are none but those that a library for sums has for itself.
        warnings.simplefilter("ignore", DeprecationWarning)
        if between := os.fork():
            os.close(writing)
            with open(reading, "rb") as file:
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


def _read_sources_anew(since: float) -> None:
    """From now on a module of which the file was written or renamed since that time is compiled from its text.

    Python takes bytecode for that of a text of the same length, saved in the same second.
    """
    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        file = os.stat(path)
        if max(file.st_mtime, file.st_ctime) < since:
            return plain(self, fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]
