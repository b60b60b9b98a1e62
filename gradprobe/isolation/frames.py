"""Messages on a stream of bytes. Each has a letter for its kind, its length, and its bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

READY, UNREADY, TOLD, ANSWER, RAISED, LOST = b"r", b"u", b"t", b"a", b"x", b"l"
_HEAD = struct.Struct("!cQ")
# No result is longer, so a greater length is something else that was written on the stream.
_LONGEST = 1 << 40


class NotAMessage(Exception):
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
            NotAMessage: the bytes cannot be the beginning of a message.
        """
        self._held += piece
        while len(self._held) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._held)
            if kind not in (READY, UNREADY, TOLD, ANSWER, RAISED, LOST) or length > _LONGEST:
                raise NotAMessage
            end = _HEAD.size + length
            if len(self._held) < end:
                return
            payload = bytes(self._held[_HEAD.size : end])
            del self._held[:end]
            yield kind, payload
