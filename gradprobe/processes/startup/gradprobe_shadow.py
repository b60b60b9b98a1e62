"""Python's own loader, made to take one file's text from a copy. It needs nothing but Python's own library."""

from __future__ import annotations

import importlib.machinery
import os
from types import CodeType


def load_from_copy(file: str, copy: str, loaded: str) -> None:
    """From now on Python's own loader takes the copy's text in the file's place.

    Code is compiled under the copy's name, so that all who read sources again (Triton does) read the same text; the
    module keeps the file's name, and with it its package and what lies beside it.
    """
    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        if not _is_same(self.path, file):
            return plain(self, fullname)
        with open(copy, "rb") as stream:
            code = compile(stream.read(), copy, "exec", dont_inherit=True)
        append(loaded, fullname)
        return code

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]


def _is_same(file: str, other: str) -> bool:
    try:
        return os.path.samefile(file, other)
    except OSError:
        return False


def append(file: str, word: str) -> None:
    with open(file, "a") as stream:
        stream.write(word + "\n")
