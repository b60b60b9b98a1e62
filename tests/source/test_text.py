"""Where the nodes of a syntax tree stand, edits there, and what a report keeps of the source that it accuses."""

import ast

import pytest

from gradprobe.model.report import CauseLine, Listing
from gradprobe.source.kernel_file import KernelFile, listings_of
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


KERNEL = """import triton

@triton.jit
def one(x):
    y = x * 2
    return y

def two(x):
    return x
"""


def test_the_functions_of_two_lines_are_kept_each_once_with_what_stands_above_def(tmp_path):
    file = tmp_path / "k.py"
    file.write_text(KERNEL)
    told = {5: "y = x * 2", 6: "return y", 9: "return x"}
    wheres = [CauseLine(str(file), line, code) for line, code in told.items()]
    lines = KERNEL.splitlines()
    kept = Listing(str(file), 3, tuple(lines[2:6])), Listing(str(file), 8, tuple(lines[7:9]))
    assert listings_of(wheres) == kept
