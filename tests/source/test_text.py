import ast

import pytest

from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.syntax import Edit, edited

TEXT = """\
def größe(q, *, schärfe=("ä", 1)):  # Σ (

    é = "∇" + f(q, "µ") * (  # a * b
        schärfe)
    return -é  # ends
"""
SOURCE = KernelFile("größe.py", TEXT)
NODES = [
    node for node in ast.walk(SOURCE.tree) if isinstance(node, (ast.expr, ast.stmt, ast.arg))
]


@pytest.mark.parametrize(
    "node", NODES, ids=lambda node: f"{type(node).__name__}-{node.lineno}-{node.col_offset}"
)
def test_a_node_stands_where_python_itself_says(node):
    assert SOURCE.text_of(node) == ast.get_source_segment(TEXT, node)
    found = SOURCE.line_of(node, "größe")
    assert found.code == TEXT.splitlines()[node.lineno - 1].strip()
    marked = found.code[found.column : found.column + found.length]
    assert marked == SOURCE.text_of(node).splitlines()[0]


def test_edits_that_overlap_are_refused_and_insertions_at_one_place_keep_their_order():
    edits = [Edit(1, 1, "x"), Edit(1, 1, "y"), Edit(1, 2, "B"), Edit(3, 3, "z")]
    assert edited("abc", edits) == "axyBcz"
    with pytest.raises(ValueError, match="overlap at character 1"):
        edited("abc", [Edit(0, 2, ""), Edit(1, 3, "")])
