"""Triton: its kernels compiled, or interpreted on the CPU. They stand in files of Python, whose folder reads them."""

import os
from contextlib import AbstractContextManager
from typing import Any

from ..interface import Language, Launches


class TritonLanguage(Language):
    """What its kernels load, store and compute is told in lanes: `interpreter.memory` and `interpreter.dataflow`."""

    def launches(self, found: Launches) -> AbstractContextManager[Any]:
        from .launches import recorded_launches

        return recorded_launches(found)


LANGUAGE = TritonLanguage()


def interpreting() -> bool:
    """Whether Triton's interpreter runs the kernels of this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"
