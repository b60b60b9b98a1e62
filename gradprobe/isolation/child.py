"""The other end: a fresh interpreter that makes one worker, and calls it for each item that it is sent."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import pickle
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..device import words_of_loss
from .ended import raised_of
from .frames import ANSWER, LOST, RAISED, READY, UNREADY, Frames, send

# Where the parent asks a child that is late to say what it is at.
WHERE = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1


def main(descriptor: int, *, dies_with_parent: bool) -> None:
    """Serves until the other end of the descriptor is closed; then this whole process group is killed."""
    os.set_inheritable(descriptor, False)
    faulthandler.enable(all_threads=False)  # the others are ours, or wait
    faulthandler.register(WHERE, all_threads=False)
    if dies_with_parent:
        _die_with_parent()
    stream = socket.socket(fileno=descriptor)
    received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(stream, received), daemon=True).start()
    worker = _made(stream, received.get())
    while True:
        send(stream, *_answered(worker, received.get()))


def _die_with_parent() -> None:
    """A hang in C that holds the GIL keeps `_receive` from seeing that the parent is gone; the kernel sees it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _receive(stream: socket.socket, received: queue.SimpleQueue[bytes]) -> None:
    frames = Frames()
    try:
        while piece := stream.recv(1 << 20):
            for _, payload in frames.feed(piece):
                received.put(payload)
    except ConnectionError:
        pass
    except OSError:
        return  # the worker closed this end: the answer that cannot be sent says so
    os.killpg(0, signal.SIGKILL)


def _made(stream: socket.socket, payload: bytes) -> Callable[[Any], Any]:
    """The worker, and word of it to the parent; without one this process is over."""
    try:
        factory, setup = pickle.loads(payload)
        module, _, name = factory.partition(":")
        worker = getattr(importlib.import_module(module), name)(pickle.loads(setup))
    except BaseException as error:
        send(stream, UNREADY, pickle.dumps(raised_of(error)))
        sys.exit(1)
    send(stream, READY, b"")
    return worker  # type: ignore[no-any-return]


def _answered(worker: Callable[[Any], Any], payload: bytes) -> tuple[bytes, bytes]:
    """The message that answers an item. Whatever the worker raises, also to leave, is an answer.

    What was made of an item that cost this process its device says nothing, nor could anything that came after it.
    """
    try:
        answer = ANSWER, pickle.dumps(worker(pickle.loads(payload)), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        answer = RAISED, pickle.dumps(raised_of(error))
    lost = words_of_loss()
    return answer if lost is None else (LOST, lost.encode())
