"""The child's side: makes one worker, calls it for each item, and sends messages."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import queue
import signal
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any

from .ended import raised_of
from .resource_limits import one_for_numpy, setting_environment, words_of_loss

# The signal by which the parent asks a child that is late for its stack.
WHERE = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1


def main(descriptor: int, stacks: int, with_parent: bool, early: Sequence[str]) -> None:
    """Serves until the other end is closed, then kills its process group. `stacks`: where a crash writes its stack."""
    for own in (descriptor, stacks):
        os.set_inheritable(own, False)
    _write_stacks_to(stacks)
    if with_parent:
        # A hang in C that holds the GIL keeps `_receive` from seeing that the parent is gone. The kernel sees it.
        dies_with_parent()
    asked: Connection[Any, bytes] = Connection(descriptor)
    answers = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - as long as this process
    received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(asked, received), daemon=True).start()
    one_for_numpy()
    gc.disable()  # importing torch makes a million objects and no garbage
    worker: Callable[[Any], Any] = repr

    def make() -> None:
        nonlocal worker
        for module in filter(None, early):
            importlib.import_module(module)
        factory, setup, environment = pickle.loads(received.get())
        os.environ.update(environment)
        worker = worker_of(factory, pickle.loads(setup))

    answer = _answer(make)
    _send(answers, answer)
    if answer[0] != ANSWER:
        sys.exit(1)
    gc.freeze()
    gc.enable()
    with heard_by(lambda value: _send(answers, (TOLD, pickle.dumps(value)))):
        while True:
            item = received.get()
            _send(answers, _answer(lambda: worker(pickle.loads(item))))  # noqa: B023 - called at once


def dies_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _receive(asked: Connection[Any, bytes], received: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            received.put(asked.recv())
    except (EOFError, ConnectionError):
        os.killpg(0, signal.SIGKILL)
    except OSError:
        return  # the worker closed this end, which the parent learns when no answer can be sent


def worker_of(factory: str, setup: Any) -> Callable[[Any], Any]:
    module, _, name = factory.partition(":")
    return getattr(importlib.import_module(module), name)(setup)  # type: ignore[no-any-return]


def _answer(work: Callable[[], Any]) -> Message:
    """How some work ended. Where it cost this process its device, its result means nothing."""
    try:
        answer = ANSWER, pickle.dumps(work(), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        answer = RAISED, pickle.dumps(raised_of(error))
    lost = words_of_loss()
    return answer if lost is None else (LOST, lost.encode())


Message = tuple[str, bytes]  # its kind, and what it holds, pickled; of LOST, the device's error
TOLD, ANSWER, RAISED, LOST = "told", "answer", "raised", "lost"
# What stands before each message, so that what a target writes there is not read as one, and waited for.
_HEAD, _SIGN = struct.Struct("!9sQ"), b"gradprobe"


def _send(answers: IO[bytes], message: Message) -> None:
    payload = pickle.dumps(message)
    answers.write(_HEAD.pack(_SIGN, len(payload)))
    answers.write(payload)
    answers.flush()


def messages(unread: bytearray) -> Iterator[Message]:
    """Takes every whole message off what was read; ValueError where something else stands there."""
    while unread:
        if not _SIGN.startswith(unread[: len(_SIGN)]):
            raise ValueError("no message")
        if len(unread) < _HEAD.size:
            return
        end = _HEAD.size + _HEAD.unpack_from(unread)[1]
        if len(unread) < end:
            return
        payload = unread[_HEAD.size : end]
        del unread[:end]
        yield pickle.loads(payload)


_listeners: list[Callable[[Any], object]] = []


def tell(value: Any) -> None:
    """Hands a value at once to whoever made this worker."""
    if _listeners:
        _listeners[-1](value)


@contextlib.contextmanager
def heard_by(listener: Callable[[Any], object]) -> Iterator[None]:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()


_stack_files: list[int] = []


def _write_stacks_to(stacks: int) -> None:
    _stack_files.append(stacks)
    faulthandler.enable(stacks)
    faulthandler.register(WHERE, stacks, all_threads=False)
    process, leave = os.getpid(), os._exit

    def leave_with_stack(status: int) -> None:
        if os.getpid() == process:  # not in a fork that the target made, which may well end so
            faulthandler.dump_traceback(stacks, all_threads=False)
        leave(status)

    os._exit = leave_with_stack  # type: ignore[assignment]


def add_to_stack(file: str, line: int, function: str) -> None:
    """Writes a stack of one line, as faulthandler does. The last one counts."""
    for descriptor in _stack_files:
        with contextlib.suppress(OSError):
            words = f'Current thread (most recent call first):\n  File "{file}", line {line} in {function}\n'
            os.write(descriptor, words.encode("ascii", "backslashreplace"))


# Compiled kernels of Triton, of torch's compiler, of CUDA's driver (PTX), and of CUDA kernels on the CPU.
_CACHES = "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "GRADPROBE_CACHE_DIR"


@contextlib.contextmanager
def fresh_caches() -> Iterator[None]:
    """While open, whatever is started finds every cache of compiled kernels empty."""
    fresh = tempfile.TemporaryDirectory(prefix="gradprobe-fresh-", ignore_cleanup_errors=True)
    with fresh as folder:
        folders = {name: os.path.join(folder, name.lower()) for name in _CACHES}
        with setting_environment(folders):
            yield
