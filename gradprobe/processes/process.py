"""The parent's side of one child process: starts it, asks it, stops it, and ends what it left."""

import codecs
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ..model.failures import Failure
from .child import LOST, TOLD, WHERE, Message, messages
from .ended import CRASH, DEVICE, MEMORY, TIMEOUT, Crash, words_of
from .resource_limits import VISIBLE, held_by, in_words

# Not -m: a file in the current folder with the name of a standard module would be imported in its place.
_START = (
    "import sys; number, stacks, dies, early, *sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from gradprobe.processes.child import main; main(int(number), int(stacks), dies == 'True', early.split(','))"
)
# Seconds between two looks; for a child to end that has closed its stream, and to write its stack.
_LOOK, _CLOSING, _SAYING = 0.05, 1.0, 1.0
_TAIL_BYTES, _TAIL_LINES = 1 << 16, 30
_CLOSED = "closed the stream that it answers on, or wrote on it"


class Child:
    def __init__(self, early: Sequence[str] = (), device: str = "") -> None:
        """Starts it, or raises Failure; it imports the modules `early`. `device`: the one GPU that it sees, or ""."""
        self.surroundings = _surroundings()
        self._mark, self._tail, self._stack_start = secrets.token_hex(8), b"", 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stream, theirs = Pipe()
        self._errors, writing = os.pipe()
        self._stacks = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `stop`
        self._unread = bytearray()
        # What is not at its end.
        self._open: list[Connection[bytes, Any] | int] = [self._stream, self._errors]
        try:
            self._process = self._started(early, device, theirs.fileno(), writing)
        except OSError as error:
            self._close()
            words = f"no process can be started: {error.strerror}"
            raise Failure(words, "run fewer at a time: --workers 1") from error
        finally:
            theirs.close()
            os.close(writing)

    def _started(
        self, early: Sequence[str], device: str, answers: int, writing: int
    ) -> subprocess.Popen[bytes]:
        stacks = self._stacks.fileno()
        in_main = threading.current_thread() is threading.main_thread()
        words = (str(answers), str(stacks), str(in_main), ",".join(early), *search_path())
        return subprocess.Popen(
            [sys.executable, "-u", "-c", _START, *words], stdin=subprocess.DEVNULL, stdout=writing, stderr=writing,
            pass_fds=(answers, stacks), start_new_session=True,
            env=os.environ | {MARK: self._mark} | ({VISIBLE: device} if device else {}),
        )  # fmt: skip

    def asked(
        self, payload: bytes, limit: float, most: int, *, told: Callable[[bytes], object],
        echo: Callable[[str], object] | None, unwanted: Callable[[], bool],
    ) -> Message | Crash:  # fmt: skip
        """Its answer; a Crash where it died, was late or took too much memory, and is stopped now.

        Args:
            limit, most: seconds, and bytes of memory, that it may take.
            echo: gets what it writes on stdout and stderr.
        """
        self._echo, self._begun = echo, (now := time.monotonic())
        self._tail, self._stack_start = b"", self._written
        late, whole = now + limit, now
        # One that is dead is noticed below, and one that reads nothing is late.
        with contextlib.suppress(OSError):
            self._stream.send(payload)
        while True:
            lives = self.lives()
            for kind, found in self._heard(min(_LOOK, max(0.0, late - now))):
                if kind == TOLD:
                    told(found)
                    continue
                self._drain()
                return self._crash(DEVICE, found.decode()) if kind == LOST else (kind, found)
            now = time.monotonic()
            if unwanted():
                if lives:
                    self._say_where()
                return self._crash(CRASH, "")
            if lives and self._stream in self._open:
                whole = now
            if (not lives and not wait(self._open, 0)) or now - whole > _CLOSING:
                return self._crash(CRASH, _CLOSED * lives)
            if held_by(self._process.pid) > most:
                words = f"stopped when it took more than {in_words(most)} of memory"
                return self._crash(MEMORY, f"{words} (--max-memory)")
            if now >= late:
                self._say_where()
                return self._crash(TIMEOUT, f"no answer within {limit:g} s: stopped")

    def _drain(self) -> None:
        over = time.monotonic() + _CLOSING
        while time.monotonic() < over and wait(self._open, 0):
            self._heard(0.0)

    def _crash(self, kind: str, words: str) -> Crash:
        self._drain()
        seconds, code = time.monotonic() - self._begun, self.stop()
        tail = "\n".join(self._tail.decode(errors="replace").splitlines()[-_TAIL_LINES:])
        return Crash(kind, words or words_of(code), tail, seconds, self._stack)

    def _say_where(self) -> None:
        before, over = self._written, time.monotonic() + _SAYING
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, WHERE)
        while self._written == before and time.monotonic() < over:
            time.sleep(_LOOK)
        time.sleep(_LOOK)

    @property
    def number(self) -> int:
        return self._process.pid

    @property
    def _written(self) -> int:
        return os.fstat(self._stacks.fileno()).st_size

    def stop(self) -> int:
        """Kills the process with all that it started, and returns its exit code as Popen gives it."""
        if self._process.returncode is not None:
            return self._process.returncode
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        _end_leftovers(self._mark)
        written = os.pread(self._stacks.fileno(), _TAIL_BYTES, self._stack_start)
        lines = written.decode(errors="replace").splitlines()
        kept = (line for line in lines if not line.startswith("Extension modules:"))
        self._stack = "\n".join(kept).strip()
        self._close()
        return code

    def _close(self) -> None:
        self._stream.close()
        os.close(self._errors)
        self._stacks.close()

    def lives(self) -> bool:
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT  # it is not reaped: its number stays its own
        is_over = self._process.returncode is not None
        return not is_over and os.waitid(os.P_PID, self._process.pid, how) is None

    def _heard(self, seconds: float) -> list[Message]:
        """Reads what it has written; the messages that are whole."""
        found = list[Message]()
        for ready in wait(self._open, seconds):
            if ready is self._stream:
                try:
                    piece = os.read(self._stream.fileno(), 1 << 20)
                    self._unread += piece
                    found += messages(self._unread)
                except Exception:  # it is reset, or a target wrote on it
                    piece = b""
                if not piece:
                    self._open.remove(self._stream)
            elif piece := os.read(self._errors, 1 << 20):
                self._tail = (self._tail + piece)[-_TAIL_BYTES:]
                if self._echo is not None:
                    with contextlib.suppress(OSError):  # its reader left (`2>&1 | head -1`)
                        self._echo(self._decode(piece))
            else:
                self._open.remove(self._errors)
        return found


# In the environment of a child, and of whatever it starts: the child's own word.
MARK = "GRADPROBE_CHILD"


def _end_leftovers(mark: str) -> None:
    """Kills what a child of this word has left in other groups than its own."""
    word = f"{MARK}={mark}".encode()
    for _ in range(3):  # a process may start another one while it is ended
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # another user's, or gone
                if word in (folder / "environ").read_bytes().split(b"\0"):
                    found = True
                    os.kill(int(folder.name), signal.SIGKILL)
        if not found:
            return


def search_path() -> list[str]:
    return [entry for entry in sys.path if isinstance(entry, str)]


def _surroundings() -> tuple[object, ...]:
    return dict(os.environ), search_path(), os.getcwd()


_waiting: list[Child] = []


def begin_child(modules: Sequence[str]) -> None:
    """Starts the next child; the one that is asked for says why none can be."""
    with contextlib.suppress(Failure):
        _waiting.append(Child(modules))


@contextlib.contextmanager
def begun_early(modules: Sequence[str], number: int = 1) -> Iterator[None]:
    for _ in range(number):
        begin_child(modules)
    try:
        yield
    finally:
        while _waiting:
            _waiting.pop().stop()


def next_child(device: str) -> Child:
    """The child that was begun early, unless its surroundings have changed; else a new one."""
    while _waiting:
        begun = _waiting.pop()
        if begun.surroundings == _surroundings() and not device and begun.lives():
            return begun
        begun.stop()
    return Child(device=device)
