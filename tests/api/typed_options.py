"""`python -m tests.api.typed_options > gradprobe/api/case_options.py`: the command line's case options as types."""

from gradprobe.inputs.options import OPTIONS

HEAD = '''"""The case options of `gradprobe check` as types; `python -m tests.api.typed_options` writes this file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch


class Options(TypedDict, total=False):
    """As `gradprobe check --help-all` explains them; None stands for an option that is not given."""
'''
_LIST = "str | Sequence[str] | Mapping[str, str]"
_PLAIN = {int: "int", float: "float", bool: "bool", str: "str", list: _LIST}
_OF_TORCH = {
    "dtype": "str | torch.dtype", "device": "str | torch.device", "inputs": "str | os.PathLike[str]",
}  # fmt: skip


def text():
    """The file."""
    fields = []
    for option in OPTIONS:
        kind = _OF_TORCH.get(option.name, _PLAIN[option.kind])
        kind = "str | float | Sequence[float]" if option.numbers else kind
        fields.append(f"    {option.name}: {kind} | None\n")
    return HEAD + "\n" + "".join(fields)


if __name__ == "__main__":
    print(text(), end="")
