"""`gradprobe watch` for tests: it is started, files are saved, and what it says of each is read."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from pathlib import Path

from tests.cli.command import SMALL, start

KERNEL = """
def backward(q, k, v, do, *, scale):
    p = (scale * q @ k.mT).softmax(-1)
    dp = do @ v.mT
    ds = p * (dp - (do * (p @ v)).sum(-1)[..., None])
    return {"P": p, "dP": dp, "dS": ds, "dQ": scale * ds @ k, "dK": scale * ds.mT @ q, "dV": p.mT @ do}
"""
READY = "to be saved"


class Watching:
    def __init__(self, words: str = f"own.py:backward {SMALL}", **changes: str) -> None:
        self.process = start(f"watch {words}", stderr=subprocess.STDOUT, **changes)
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self.process.stdout as stream:
            for line in stream:
                self._said.put(line.decode())

    def until(self, words: str = READY, seconds: float = 60.0) -> str:
        said = ""
        while words not in said:
            try:
                said += self._said.get(timeout=seconds)
            except queue.Empty:
                raise AssertionError(f"{words!r} is not in {said!r}") from None
        return said

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.code = self.process.wait(timeout=20)
        self._reader.join()


def put(file: str, text: str) -> None:
    """Saves as editors do: beside it, then in its place."""
    Path(f"{file}~").write_text(text)
    os.replace(f"{file}~", file)
