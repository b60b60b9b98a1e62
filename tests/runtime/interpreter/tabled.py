"""Kernels from a table: a line with a name and what the kernel should give, and its own lines below, indented."""

import importlib.util
import re
import tempfile
from pathlib import Path

_FOLDER = tempfile.TemporaryDirectory()
_HEAD = """import torch
import triton
import triton.language as tl
from triton.language import exp2
from triton.language.extra import libdevice

exp = tl.exp
"""


def kernels_of(table: str, frame: str, helpers: str = "", **known) -> dict:
    """Each kernel of a table, and the function of its operands that it should compute.

    Args:
        frame: the source of one kernel, with `{name}` and `{body}` to fill in; a line `# x, y` names the operands.
        known: what the expected values are computed with, besides torch.
    """
    rows = re.findall(r"^(\w+) +(.+)\n((?: +.+\n)+)", table, re.MULTILINE)
    (operands,) = re.findall(r"^# (.+)$", frame, re.MULTILINE)
    sources = [frame.format(name=name, body=body) for name, _, body in rows]
    file = Path(_FOLDER.name, f"tabled_{len(list(Path(_FOLDER.name).iterdir()))}.py")
    file.write_text("\n".join([_HEAD, helpers, *sources]))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    space = vars(module) | known
    return {
        getattr(module, name): eval(f"lambda {operands}: {due}", space) for name, due, _ in rows
    }
