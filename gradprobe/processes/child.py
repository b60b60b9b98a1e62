"""The child's side: an interpreter that makes one worker and calls it for each item; and what it has of its parent."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import os
import pickle
import queue
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .ended import raised_of
from .resource_limits import one_for_numpy, words_of_loss

# Seconds in which a child must be ready. Importing torch takes up to twenty seconds on a busy machine with cold disks.
START_LIMIT = 180.0
# The signal by which the parent asks a child that is late for its stack.
WHERE = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1


def main(descriptor: int, stacks: int, with_parent: bool, early: Sequence[str] = ()) -> None:
    """Serves until the other end of the descriptor is closed, then kills this whole process group.

    Args:
        stacks: a descriptor for the stack of a crash, so that it is apart from what a target writes.
        early: modules to import before it is told what to do.
    """
    os.set_inheritable(descriptor, False)
    os.set_inheritable(stacks, False)
    _say_where_it_ends(stacks)
    if with_parent:
        # A hang in C that holds the GIL keeps `_receive` from seeing that the parent is gone. The kernel sees it.
        dies_with_parent()
    stream = socket.socket(fileno=descriptor)
    received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(stream, received), daemon=True).start()
    one_for_numpy()
    gc.disable()  # importing torch makes a million objects and no garbage
    worker = _worker(stream, received, early)
    gc.freeze()
    gc.enable()
    with heard_by(lambda value: send(stream, TOLD, pickle.dumps(value))):
        while True:
            send(stream, *_answered(worker, received.get()))


def dies_with_parent() -> None:
    """Has the system end this process with its parent."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _say_where_it_ends(stacks: int) -> None:
    """Has a crash, the signal WHERE and `os._exit` write the stack of this process."""
    stack_goes_to(stacks)
    faulthandler.enable(stacks)
    faulthandler.register(WHERE, stacks, all_threads=False)
    process, leave = os.getpid(), os._exit

    def leaving(status: int) -> None:
        if os.getpid() == process:  # not in a fork that the target made, which may well end so
            faulthandler.dump_traceback(stacks, all_threads=False)
        leave(status)

    os._exit = leaving  # type: ignore[assignment]


def _receive(stream: socket.socket, received: queue.SimpleQueue[bytes]) -> None:
    frames = Frames()
    try:
        while piece := stream.recv(1 << 20):
            for _, payload in frames.feed(piece):
                received.put(payload)
    except ConnectionError:
        pass
    except OSError:
        return  # the worker closed this end, which the parent learns when no answer can be sent
    os.killpg(0, signal.SIGKILL)


def _worker(
    stream: socket.socket, received: queue.SimpleQueue[bytes], early: Sequence[str]
) -> Callable[[Any], Any]:
    """Makes the worker and reports it to the parent. Where that fails, this process ends."""
    try:
        _import(list(filter(None, early)))
        factory, setup, environment = pickle.loads(received.get())
        os.environ.update(environment)
        worker = worker_of(factory, pickle.loads(setup))
    except BaseException as error:
        send(stream, UNREADY, pickle.dumps(raised_of(error)))
        sys.exit(1)
    send(stream, READY, b"")
    return worker


def _import(modules: Sequence[str]) -> None:
    """Imports modules; where torch is one of them, its library is loaded beside those before it."""
    loading = threading.Thread(target=_load_torchs_library, daemon=True)
    if "torch" in modules and "torch" not in sys.modules:
        loading.start()
    for module in modules:
        if module == "torch" and loading.is_alive():
            loading.join()
        importlib.import_module(module)


def _load_torchs_library() -> None:
    """A fifth of the import of a torch without CUDA, in which no Python runs. What torch loads before it, comes before.

    Where it cannot be loaded, the import says why.
    """
    spec = importlib.util.find_spec("torch")
    folder = os.path.join(os.path.dirname((spec and spec.origin) or ""), "lib")
    if sys.platform == "linux" and not os.path.exists(os.path.join(folder, "libtorch_cuda.so")):
        with contextlib.suppress(OSError):
            ctypes.CDLL(os.path.join(folder, "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
            ctypes.CDLL(os.path.join(folder, "libtorch_cpu.so"))


def worker_of(factory: str, setup: Any) -> Callable[[Any], Any]:
    """An instance of `package.module:Class`, made from its setup."""
    module, _, name = factory.partition(":")
    return getattr(importlib.import_module(module), name)(setup)  # type: ignore[no-any-return]


def _answered(worker: Callable[[Any], Any], payload: bytes) -> tuple[bytes, bytes]:
    """The message that answers an item. Any exception of the worker is an answer, also one that ends a process.

    Where the item cost this process its device, neither its result nor anything later means anything.
    """
    try:
        answer = ANSWER, pickle.dumps(worker(pickle.loads(payload)), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        answer = RAISED, pickle.dumps(raised_of(error))
    lost = words_of_loss()
    return answer if lost is None else (LOST, lost.encode())


READY, UNREADY, TOLD, ANSWER, RAISED, LOST = b"r", b"u", b"t", b"a", b"x", b"l"
_HEAD = struct.Struct("!cQ")
# No result is longer, so a greater length is something else that was written on the stream.
_LONGEST = 1 << 40


class ForeignOutput(Exception):
    """The stream holds something other than messages."""


def send(stream: socket.socket, kind: bytes, payload: bytes) -> None:
    """Writes one message, as slowly as the other side reads."""
    stream.sendall(_HEAD.pack(kind, len(payload)))
    stream.sendall(payload)


class Frames:
    """Puts together messages from pieces of any length."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Adds a piece, and yields the (kind, payload) of every message that is now complete.

        Raises:
            ForeignOutput: the bytes cannot be the beginning of a message.
        """
        self._held += piece
        while len(self._held) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._held)
            if kind not in (READY, UNREADY, TOLD, ANSWER, RAISED, LOST) or length > _LONGEST:
                raise ForeignOutput
            end = _HEAD.size + length
            if len(self._held) < end:
                return
            payload = bytes(self._held[_HEAD.size : end])
            del self._held[:end]
            yield kind, payload


_listeners: list[Callable[[Any], object]] = []


def tell(value: Any) -> None:
    """Hands a value at once to whoever made this worker; to nobody where nobody listens."""
    if _listeners:
        _listeners[-1](value)


@contextlib.contextmanager
def heard_by(listener: Callable[[Any], object]) -> Iterator[None]:
    """While open, the listener gets every value that is told in this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()


_stacks: list[int] = []
"""The file that a child writes its stack to."""


def stack_goes_to(descriptor: int) -> None:
    """Says where the stack of this process is written."""
    _stacks.append(descriptor)


def add_to_stack(file: str, line: int, function: str) -> None:
    """Writes a stack of one line, as faulthandler does; nothing where nobody reads it. The last one counts."""
    for descriptor in _stacks[-1:]:
        with contextlib.suppress(OSError):
            words = f'Current thread (most recent call first):\n  File "{file}", line {line} in {function}\n'
            os.write(descriptor, words.encode("ascii", "backslashreplace"))


def surroundings() -> tuple[object, ...]:
    """What a process has of its parent: its environment, its search path and its folder."""
    return dict(os.environ), search_path(), os.getcwd()


def search_path() -> list[str]:
    """Where this process looks for modules."""
    return [entry for entry in sys.path if isinstance(entry, str)]


# Compiled kernels of Triton, of torch's compiler, of CUDA's driver (PTX), and of CUDA kernels on the CPU.
_CACHES = (
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "GRADPROBE_CACHE_DIR",
)


@contextlib.contextmanager
def fresh_caches() -> Iterator[None]:
    """While open, whatever is started finds every cache of compiled kernels empty."""
    before = {name: os.environ[name] for name in _CACHES if name in os.environ}
    fresh = tempfile.TemporaryDirectory(prefix="gradprobe-fresh-", ignore_cleanup_errors=True)
    with fresh as folder:
        for name in _CACHES:
            os.environ[name] = str(Path(folder) / name.lower())
        try:
            yield
        finally:
            for name in _CACHES:
                del os.environ[name]
            os.environ.update(before)
