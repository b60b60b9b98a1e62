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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..model.failures import Failure
from .child import READY, WHERE, ForeignOutput, Frames, search_path, send, surroundings
from .resource_limits import SHARE, SHARED_BY, VISIBLE, held_by, in_words
from .warm import WARM, ForkedChild, forked_from_warm

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
            device: the one GPU that it sees, as CUDA_VISIBLE_DEVICES names it; "" where it sees what this process does.

        Raises:
            Failure: no process can be started.
        """
        self.device, self.since = device, time.monotonic()
        """`since`: when it was started or got its item."""
        self.index: int | None = None
        """The index of the item that it works on."""
        self.ready = False
        self.over = self.broken = ""
        """What says that it took too much memory, and what was wrong with its stream of messages."""
        self.surroundings = _surroundings()
        self._tail = self._stack = b""
        self._mark = secrets.token_hex(8)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._stream, theirs = socket.socketpair()
        self._errors, writing = os.pipe()
        self._stacks, stacks = os.pipe()
        try:
            self._process = self._started(early, theirs.fileno(), writing, stacks)
        except OSError as error:
            self._close()
            words = f"no process can be started: {error.strerror}"
            raise Failure(words, "run fewer at a time: --workers 1") from error
        finally:
            theirs.close()
            os.close(writing)
            os.close(stacks)

    def _started(
        self, early: Sequence[str], answers: int, writing: int, stacks: int
    ) -> subprocess.Popen[bytes] | ForkedChild:
        words = (str(threading.current_thread() is threading.main_thread()), ",".join(early))
        can_fork = WARM and not self.device
        if can_fork and (fork := forked_from_warm(words, (answers, writing, stacks))):
            return fork
        return subprocess.Popen(
            [
                sys.executable,
                "-u",
                "-c",
                _START,
                str(answers),
                str(stacks),
                *words,
                *search_path(),
            ],
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
        """Has it make its worker.

        Args:
            echo: called with what it writes to stdout or stderr, as it comes.
            workers: how many such children there are at a time.
            most: the bytes of memory that it may take.
        """
        self._events, self._echo, self._most = events, echo, most
        self._listener.start()
        # Of a child of one of several, all of those share the cores too.
        sharing = workers * int(os.environ.get(SHARED_BY, "1"))
        shares = {SHARED_BY: str(sharing), MARK: self._mark, SHARE: str(most)}
        self._send(pickle.dumps((factory, setup, shares)))

    def give(self, index: int, payload: bytes) -> None:
        """Sends an item, pickled."""
        self.index, self.since = index, time.monotonic()
        self._tail = self._stack = b""
        self._send(payload)

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
        self._close()
        return code

    def _close(self) -> None:
        self._stream.close()
        os.close(self._errors)
        os.close(self._stacks)

    @property
    def tail(self) -> str:
        """The last lines that it has written since it got its item."""
        return "\n".join(self._tail.decode(errors="replace").splitlines()[-_TAIL_LINES:])

    @property
    def stack(self) -> str:
        """Its stack when it crashed or was asked, without the list of compiled modules; "" where there is none."""
        lines = self._stack.decode(errors="replace").splitlines()
        kept = [line for line in lines if not line.startswith("Extension modules:")]
        return "\n".join(kept).strip()

    def _send(self, payload: bytes) -> None:
        # A child that is dead is noticed by the listener; one that does not read is late.
        with contextlib.suppress(OSError):
            send(self._stream, READY, payload)

    def _kill(self) -> None:
        """Kills the group. This is safe only before the process is waited for: its id may then be another process's."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._process.pid, signal.SIGKILL)

    def _listen(self) -> None:
        """Reads all streams as they come, so that the child never blocks, and puts its end among the events."""
        frames, closed = Frames(), 0.0
        with selectors.DefaultSelector() as selector:
            for stream in (self._stream, self._errors, self._stacks):
                selector.register(stream, selectors.EVENT_READ)
            while self._lives() and not self._is_over():
                if closed and time.monotonic() - closed > _CLOSING:
                    break
                if not self._read(selector, frames, _LOOK) and not closed:
                    closed = time.monotonic()
            if self._lives() and not self.broken:
                self.broken = "closed the stream that it answers on"
            self._kill()
            over = time.monotonic() + _CLOSING
            while time.monotonic() < over and selector.select(0):
                self._read(selector, frames, 0)
        self._events.put(ChildMessage(self, None))

    def _is_over(self) -> bool:
        """Whether it takes too much memory. The parent asks, since a child that is busy in C cannot."""
        if held_by(self._process.pid) > self._most:
            size = in_words(self._most)
            self.over = f"stopped when it took more than {size} of memory (--max-memory)"
        return bool(self.over)

    def _lives(self) -> bool:
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, how) is None

    def _read(self, selector: selectors.BaseSelector, frames: Frames, wait: float) -> bool:
        """Reads what has come; False once no more messages can come."""
        for key, _ in selector.select(wait):
            piece = self._piece(key.fd)
            if not piece:
                selector.unregister(key.fileobj)
            elif key.fd == self._stacks:
                self._stack = (self._stack + piece)[-_TAIL_BYTES:]
            elif key.fd == self._errors:
                self._write(piece)
            elif not self.broken:
                self._hear(frames, piece)
        return self._stream in selector.get_map() and not self.broken

    def _write(self, piece: bytes) -> None:
        self._tail = (self._tail + piece)[-_TAIL_BYTES:]
        if self._echo is not None:
            with contextlib.suppress(OSError):  # whoever reads it has left (`2>&1 | head -1`)
                self._echo(self._decode(piece))

    def _piece(self, descriptor: int) -> bytes:
        try:
            return os.read(descriptor, 1 << 20)
        except OSError:  # the other end may reset the stream
            return b""

    def _hear(self, frames: Frames, piece: bytes) -> None:
        try:
            for kind, payload in frames.feed(piece):
                self._events.put(ChildMessage(self, kind, payload))
        except ForeignOutput:
            self.broken = "wrote something else on the stream that it answers on"


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


def _surroundings() -> tuple[object, ...]:
    return *surroundings(), threading.get_ident()


_waiting: list[Child] = []


@contextlib.contextmanager
def begun_early(modules: Sequence[str]) -> Iterator[None]:
    """Starts the next child, which imports these modules meanwhile; ends it where nobody took it.

    Where it cannot be started nothing happens: the child says why.
    """
    with contextlib.suppress(Failure):
        _waiting.append(Child(modules))
    try:
        yield
    finally:
        while _waiting:
            _waiting.pop().stop()


def next_child(device: str) -> Child:
    """The child that was begun early, unless what it has of this process has changed; else a new one."""
    while _waiting:
        begun = _waiting.pop()
        if begun.surroundings == _surroundings() and not device:
            begun.since = time.monotonic()
            return begun
        begun.stop()
    return Child(device=device)
