"""CUDA C++ as a syntax tree, whose offsets are those of the characters in the file; and its statements."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import Statements

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# Comments and literals, by the lexical rules of C++. A raw string has no escapes.
_LEXICAL = re.compile(
    r"//(?:\\\n|[^\n])*|/\*.*?\*/|\bR\"(?P<end>[^()\\\s]*)\(.*?\)(?P=end)\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
# The grammar does not know these everywhere, and they say nothing about names and types. Parentheses nest up to twice.
_ATTRIBUTE = re.compile(
    r"\b(?:alignas|__align__|__launch_bounds__|__cluster_dims__|__attribute__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
)
# What is known of a macro under NVRTC, and so under the header for CPUs, which defines NVRTC's macros.
_MACROS = {"0": False, "1": True, "__CUDACC__": True, "__CUDACC_RTC__": True, "__NVCC__": False}
_CONDITION = re.compile(r"(!?)(?:defined)?\(?(\w+)\)?")
_MARKS = {"pointer_declarator": "*", "reference_declarator": "&", "array_declarator": "["}
_LOOPS = ("for_statement", "while_statement", "do_statement")
_ASSIGNING = {"assignment_expression": "left", "init_declarator": "declarator"}


# --- Text


def blank(text: str, start: int, end: int) -> str:
    """The text with spaces from one offset to another; line breaks stay."""
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def without_comments(text: str) -> str:
    """The text without comments, the contents of literals, and what `#if` leaves out; all else keeps its place.

    An `#if` may cut through a declaration, so its branches are decided here and not in the tree. A branch whose
    condition is not known stays.
    """
    lines = _LEXICAL.sub(_emptied, text).splitlines(keepends=True)
    branches: list[bool | None] = []
    for number, line in enumerate(lines):
        found = _DIRECTIVE.match(line)
        word = found[1] if found is not None else ""
        if found is not None and word.startswith("if"):
            branches.append(_is_taken(word, "".join(found[2].split())))
        elif branches and word == "endif":
            branches.pop()
        elif branches and word in ("else", "elif"):
            before = branches[-1]
            is_open = before is None or (word == "elif" and not before)
            branches[-1] = None if is_open else not before
        elif False in branches:
            lines[number] = blank(line, 0, len(line))
    return "".join(lines)


def _emptied(found: re.Match[str]) -> str:
    text = found[0]
    # A `\` at the end of a line continues a directive.
    empty = re.sub(r"\\(?!\n)|[^\\\n]", " ", text)
    if text[0] == '"':  # still a string
        return f'"{empty[1:-1]}"'
    return empty if text[0] == "/" else f"0{empty[1:]}"


def _is_taken(word: str, condition: str) -> bool | None:
    """Whether the lines after an `#if` count; None where an option decides."""
    found = _CONDITION.fullmatch(condition)
    value = _MACROS.get(found[2]) if found is not None else None
    if found is None or value is None:
        return None
    return value != (bool(found[1]) or word == "ifndef")


def is_directive(text: str, place: int) -> bool:
    """Whether a place lies in a line of the preprocessor."""
    return any(line.start() <= place < line.end() for line in _DIRECTIVE.finditer(text))


def includes(text: str) -> Iterator[re.Match[str]]:
    """Every `#include` of a text that counts; group 1 is what is included."""
    plain = without_comments(text)
    for found in _INCLUDE.finditer(text):
        if "#" in plain[found.start() : found.end()]:
            yield found


# --- Trees


@functools.lru_cache(maxsize=128)
def parse(text: str) -> Node:
    """The tree of a text from `without_comments`, its directives left out."""
    for pattern in (_DIRECTIVE, _ATTRIBUTE):
        text = pattern.sub(lambda found: blank(found[0], 0, len(found[0])), text)
    # One byte for each character, so that offsets of bytes are offsets of characters.
    return _parser().parse(text.encode("ascii", "replace")).root_node


@functools.cache
def _parser() -> Parser:
    import tree_sitter_cuda
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_cuda.language()))


def nodes(root: Node | None, *types: str) -> Iterator[Node]:
    """The nodes of some types, or of all, under a node and itself, in the order of the text."""
    waiting = [] if root is None else [root]
    while waiting:
        node = waiting.pop()
        if not types or node.type in types:
            yield node
        waiting += reversed(node.children)


def leaves(root: Node) -> list[Node]:
    """The tokens under a node."""
    return [node for node in nodes(root) if not node.child_count]


def node_text(node: Node | None) -> str:
    """The text of a node with single spaces; "" for no node."""
    if node is None or not node.text:
        return ""
    return " ".join(node.text.decode().split())


def has(node: Node, word: str) -> bool:
    """Whether a declaration begins with a keyword such as `__global__` or `extern`."""
    return any(word in (child.type, node_text(child)) for child in node.children)


# --- Declarations


@dataclass(frozen=True)
class Declaration:
    """A variable, a parameter or a function, as it is written."""

    name: str
    type: str = ""
    """Without qualifiers: "float*", "long long"."""
    is_const: bool = False
    """Whether it, or what it points to, is."""


@dataclass(frozen=True)
class DeclaredFunction(Declaration):
    """A function that is declared or defined under a plain name."""

    line: int = 0
    """In which its name stands."""
    parameters: tuple[Declaration, ...] = ()
    is_template: bool = False
    node: Node | None = None


def declared(declaration: Node) -> list[Declaration]:
    """The variables of a declaration; or what a parameter is, whose arrays are pointers, with or without a name."""
    kind = declaration.child_by_field_name("type")
    if kind is not None and kind.type == "struct_specifier":
        kind = kind.child_by_field_name("name") or kind
    array = "" if declaration.type == "declaration" else "*"
    found = []
    tops: list[Node | None] = [*declaration.children_by_field_name("declarator")]
    for top in tops or [None]:
        marks, name, node = "", "", top
        while node is not None:
            marks += _MARKS.get(node.type.removeprefix("abstract_"), "")
            name = node_text(node) if node.type.endswith("identifier") else ""
            node = _inside(node)
        type_ = node_text(kind) + marks.replace("[", array)
        found.append(Declaration(name, type_, has(declaration, "const")))
    return found


def function_name(declaration: Node) -> Node | None:
    """Where the name of the function stands that is declared or defined; None of anything else."""
    if declaration.type == "linkage_specification":
        declaration = declaration.child_by_field_name("body") or declaration
    for top in declaration.children_by_field_name("declarator"):
        for function in nodes(top, "function_declarator"):
            return function.child_by_field_name("declarator")
    return None


def declared_function(declaration: Node) -> DeclaredFunction | None:
    """The function that is declared or defined; None of anything else, a member, and one instance of a template."""
    name = function_name(declaration)
    if name is None or name.type != "identifier" or name.parent is None:
        return None
    given = name.parent.child_by_field_name("parameters")
    parameters = []
    if given is not None and node_text(given) != "(void)":
        for node in given.named_children:
            parameters += declared(node)
    around = declaration.parent
    is_template = around is not None and around.type == "template_declaration"
    line = name.start_point[0] + 1
    return DeclaredFunction(node_text(name), "", False, line, tuple(parameters), is_template, declaration)


def _inside(declarator: Node) -> Node | None:
    """What is inside a declarator such as `*name[3]`."""
    if not declarator.type.endswith("declarator"):
        return None
    if (inner := declarator.child_by_field_name("declarator")) is not None:
        return inner
    for child in declarator.named_children:
        if child.type.endswith(("declarator", "identifier")):
            return child
    return None


# --- Statements


class CudaStatements(Statements):
    """The statements of a file of CUDA C++."""

    @functools.cached_property
    def _root(self) -> Node:
        return parse(without_comments(Path(self.file).read_text(errors="replace")))

    def loops(self, line: int) -> list[int]:
        """Those that a line stands in."""
        around = [_lines(loop) for loop in nodes(self._root, *_LOOPS)]
        return sorted((lines.start for lines in around if line in lines[1:]), reverse=True)

    def address(self, line: int) -> list[int]:
        """Those of the products that are assigned to what a line uses, and of the quotients in those."""
        function = None
        for node in nodes(self._root, "function_definition"):
            function = node if line in _lines(node) else function
        if function is None:
            return []
        made = [leaf for leaf in leaves(function) if line in _lines(leaf)]
        found: dict[int, None] = {}
        for operators in ({"*"}, {"/", "%"}):
            used = {node_text(leaf) for node in made for leaf in leaves(node) if leaf.type == "identifier"}
            made = _assignments(function, line, used, operators)
            found |= dict.fromkeys(_lines(node).start for node in made)
        return [*found]


def _assignments(function: Node, line: int, names: set[str], operators: set[str]) -> list[Node]:
    """The assignments to some names before a line in which such an operator stands, the last first."""
    found: dict[object, Node] = {}
    for node in nodes(function, *_ASSIGNING):
        name = node_text(node.child_by_field_name(_ASSIGNING[node.type])).lstrip("*& ")
        terms = set[str]()
        for term in nodes(node, "binary_expression"):
            terms |= {child.type for child in term.children}
        if _lines(node).start < line and name in names and terms & operators:
            # Of what is declared again the last declaration counts.
            found[name if node.type == "init_declarator" else node.start_byte] = node
    return sorted(found.values(), key=lambda node: -_lines(node).start)


def _lines(node: Node) -> range:
    return range(node.start_point[0] + 1, node.end_point[0] + 2)
