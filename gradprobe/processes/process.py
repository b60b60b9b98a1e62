"""The parent's side of one child process: starts it, gives it items, reads its messages, stops it, and what it left."""

from __future__ import annotations

import codecs
import contextlib
import os
import pickle
import queue
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..model.failures import Failure
from .child import ANSWER, WHERE, ForeignOutput, Frames, send
from .ended import CRASH, MEMORY
from .resource_limits import SHARE, SHARED_BY, VISIBLE, held_by, in_words

# Not -m: a file in the current folder with the name of a standard module would be imported in its place.
_START = (
    "import sys; number, stacks, dies, early, *sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from gradprobe.processes.child import main; main(int(number), int(stacks), dies == 'True', early.split(','))"
)
# Seconds between two checks that the child lives; for a child to end once it has closed its stream; and for a child
# that is late to write its stack.
_LOOK, _CLOSING, _SAYING = 0.05, 1.0, 1.0
_TAIL_BYTES, _TAIL_LINES = 1 << 16, 30


@dataclass(frozen=True)
class ChildMessage:
    """A message of a child. Its kind is None where the child can send no more."""

    child: Child
    kind: bytes | None
    payload: bytes = b""


class Child:
    """A process with a session of its own, so that it can be killed with all that it started."""

    def __init__(self, early: Sequence[str] = (), device: str = "") -> None:
        """Starts it; it waits for its worker.

        Args:
            early: modules that it imports meanwhile.
            device: the one GPU that it sees, as CUDA_VISIBLE_DEVICES names it; "" for those of this process.

        Raises:
            Failure: no process can be started.
        """
        self.device, self.since = device, time.monotonic()
        """`since`: when it was started or got its item."""
        self.index: int | None = None
        """The index of the item that it works on."""
        self.ready = False
        self.broken: tuple[str, str] | None = None
        """Why it was killed: CRASH or MEMORY, and words."""
        self.stack = ""
        """Of one that was stopped: its stack when it crashed or was asked for it."""
        self.surroundings = _surroundings()
        self._mark = secrets.token_hex(8)
        self._tail, self._stack_start = b"", 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._stream, theirs = socket.socketpair()
        self._errors, writing = os.pipe()
        self._stacks = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `stop`
        try:
            self._process = self._started(early, theirs.fileno(), writing)
        except OSError as error:
            self._close()
            words = f"no process can be started: {error.strerror}"
            raise Failure(words, "run fewer at a time: --workers 1") from error
        finally:
            theirs.close()
            os.close(writing)

    def _started(
        self, early: Sequence[str], answers: int, writing: int
    ) -> subprocess.Popen[bytes]:
        stacks = self._stacks.fileno()
        in_main = threading.current_thread() is threading.main_thread()
        words = (str(answers), str(stacks), str(in_main), ",".join(early), *search_path())
        return subprocess.Popen(
            [sys.executable, "-u", "-c", _START, *words],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            pass_fds=(answers, stacks),
            start_new_session=True,
            env=os.environ | {MARK: self._mark} | ({VISIBLE: self.device} if self.device else {}),
        )

    def begin(
        self,
        factory: str,
        setup: bytes,
        events: queue.SimpleQueue[ChildMessage],
        echo: Callable[[str], object] | None,
        workers: int,
        most: int,
    ) -> None:
        """Has it make its worker, which it answers as an item.

        Args:
            echo: called with what it writes to stdout or stderr, as it comes.
            workers: how many such children there are at a time.
            most: the bytes of memory that it may take.
        """
        self._events, self._echo, self._most = events, echo, most
        self._listener.start()
        # Of a child of one of several, all of those share the cores too.
        sharing = workers * int(os.environ.get(SHARED_BY, "1"))
        self._send(pickle.dumps((factory, setup, {SHARED_BY: str(sharing), SHARE: str(most)})))

    def give(self, index: int, payload: bytes) -> None:
        """Sends an item, pickled."""
        self.index, self.since = index, time.monotonic()
        self._tail, self._stack_start = b"", os.fstat(self._stacks.fileno()).st_size
        self._send(payload)

    def _send(self, payload: bytes) -> None:
        # A child that is dead is noticed by the listener; one that does not read is late.
        with contextlib.suppress(OSError):
            send(self._stream, ANSWER, payload)

    def say_where(self) -> None:
        """Has a child that is late write its stack."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, WHERE)
        self._listener.join(_SAYING)

    def stop(self) -> int:
        """Kills the process with all that it started, and returns its exit code as Popen gives it."""
        self._kill()
        if self._listener.ident is not None:
            self._listener.join()
            _end_leftovers(self._mark)
        code = self._process.wait()
        self.stack = self._read_stack()
        self._close()
        return code

    def _close(self) -> None:
        self._stream.close()
        os.close(self._errors)
        self._stacks.close()

    @property
    def tail(self) -> str:
        """The last lines that it has written since it got its item."""
        return "\n".join(self._tail.decode(errors="replace").splitlines()[-_TAIL_LINES:])

    def _read_stack(self) -> str:
        """Without the list of compiled modules."""
        written = os.pread(self._stacks.fileno(), _TAIL_BYTES, self._stack_start)
        lines = written.decode(errors="replace").splitlines()
        return "\n".join(
            line for line in lines if not line.startswith("Extension modules:")
        ).strip()

    def _kill(self) -> None:
        """Kills the group. This is safe only before the process is waited for: its id may then be another process's."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._process.pid, signal.SIGKILL)

    def _listen(self) -> None:
        """Reads both streams as they come, so that the child never blocks, and puts its end among the events."""
        frames, closed = Frames(), 0.0
        with selectors.DefaultSelector() as selector:
            for stream in (self._stream, self._errors):
                selector.register(stream, selectors.EVENT_READ)
            while self.lives() and not self._takes_too_much():
                if closed and time.monotonic() - closed > _CLOSING:
                    break
                self._read(selector, frames, _LOOK)
                if not closed and (self.broken or self._stream not in selector.get_map()):
                    closed = time.monotonic()
            if self.lives() and not self.broken:
                self.broken = CRASH, "closed the stream that it answers on"
            self._kill()
            over = time.monotonic() + _CLOSING
            while time.monotonic() < over and selector.select(0):
                self._read(selector, frames, 0)
        self._events.put(ChildMessage(self, None))

    def _takes_too_much(self) -> bool:
        """The parent asks, since a child that is busy in C cannot."""
        if held_by(self._process.pid) <= self._most:
            return False
        size = in_words(self._most)
        self.broken = MEMORY, f"stopped when it took more than {size} of memory (--max-memory)"
        return True

    def lives(self) -> bool:
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, how) is None

    def _read(self, selector: selectors.BaseSelector, frames: Frames, wait: float) -> None:
        """Reads what has come, and of a stream that is closed no more."""
        for key, _ in selector.select(wait):
            try:
                piece = os.read(key.fd, 1 << 20)
            except OSError:  # the other end may reset the stream
                piece = b""
            if not piece:
                selector.unregister(key.fileobj)
            elif key.fd == self._errors:
                self._keep(piece)
            elif not self.broken:
                self._hear(frames, piece)

    def _keep(self, piece: bytes) -> None:
        self._tail = (self._tail + piece)[-_TAIL_BYTES:]
        if self._echo is not None:
            with contextlib.suppress(OSError):  # whoever reads it has left (`2>&1 | head -1`)
                self._echo(self._decode(piece))

    def _hear(self, frames: Frames, piece: bytes) -> None:
        try:
            for kind, payload in frames.feed(piece):
                self._events.put(ChildMessage(self, kind, payload))
        except ForeignOutput:
            self.broken = CRASH, "wrote something else on the stream that it answers on"


MARK = "GRADPROBE_CHILD"
"""The name in the environment of a child, and so of whatever it starts, that holds the child's own word."""
# A process may start another one while it is ended.
_PASSES = 3


def _end_leftovers(mark: str) -> None:
    """Kills all processes of this user that a child of this word has left, wherever they are by now."""
    for _ in range(_PASSES):
        found = list(_marked(f"{MARK}={mark}".encode()))
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if not found:
            return


def _marked(word: bytes) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or gone
            if word in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def search_path() -> list[str]:
    """Where this process looks for modules."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def _surroundings() -> tuple[object, ...]:
    """What a child has of this process, and with which thread it ends."""
    return dict(os.environ), search_path(), os.getcwd(), threading.get_ident()


_waiting: list[Child] = []


def begin_child(modules: Sequence[str]) -> None:
    """Starts the next child, which imports these modules meanwhile.

    Where it cannot be started nothing happens: the child that is asked for says why.
    """
    with contextlib.suppress(Failure):
        _waiting.append(Child(modules))


@contextlib.contextmanager
def begun_early(modules: Sequence[str]) -> Iterator[None]:
    """`begin_child`; what nobody took by the end is ended."""
    begin_child(modules)
    try:
        yield
    finally:
        while _waiting:
            _waiting.pop().stop()


def next_child(device: str) -> Child:
    """The child that was begun early, unless what it has of this process has changed; else a new one."""
    while _waiting:
        begun = _waiting.pop()
        if begun.surroundings == _surroundings() and not device and begun.lives():
            begun.since = time.monotonic()
            return begun
        begun.stop()
    return Child(device=device)
