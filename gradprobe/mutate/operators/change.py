"""What an operator proposes: edits of one class of fault, and the node that they are about."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...source.edits import Edit


@dataclass(frozen=True)
class Change:
    """A mutant before it has a name."""

    fault_class: str
    node: ast.AST
    """Inside the function that is changed."""
    edits: tuple[Edit, ...]
