"""CUDA C++ as a syntax tree by characters; its statements."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import Statements

if TYPE_CHECKING:
    from tree_sitter import Node

# Comments and literals. A raw string has no escapes.
_LEXICAL = re.compile(
    r"//(?:\\\n|[^\n])*|/\*.*?\*/|\bR\"(?P<end>[^()\\\s]*)\(.*?\)(?P=end)\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
# The grammar does not know these everywhere, and they say nothing about names and types. Parentheses nest up to twice.
_ATTRIBUTE = re.compile(
    r"\b(?:alignas|__align__|__launch_bounds__|__cluster_dims__|__attribute__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
)
# What is known of a macro under NVRTC, and so under the header for CPUs, which defines NVRTC's macros.
_MACROS = {"0": False, "1": True, "__CUDACC__": True, "__CUDACC_RTC__": True, "__NVCC__": False}
_CONDITION = re.compile(r"#if(?:(n)?def(?!ined))?(!)?(?:defined)?\(?(\w+)\)?")
_MARKS = {"pointer_declarator": "*", "reference_declarator": "&", "array_declarator": "["}
_LOOPS = ("for_statement", "while_statement", "do_statement")
_ASSIGNING = {"assignment_expression": "left", "init_declarator": "declarator"}


def blank(text: str) -> str:
    return re.sub(r"\\(?!\n)|[^\\\n]", " ", text)


def without_comments(text: str) -> str:
    """Spaces for comments, literals, and what a known `#if` leaves out."""
    lines = _LEXICAL.sub(_without_content, text).splitlines(keepends=True)
    branches = list[bool | None]()  # of each open #if, whether what follows is compiled
    for number, line in enumerate(lines):
        found = _DIRECTIVE.match(line)
        word = found[1] if found is not None else ""
        if found is not None and word.startswith("if"):
            condition = _CONDITION.fullmatch("".join(found[0].split()))
            value = _MACROS.get(condition[3]) if condition is not None else None
            is_not = condition is not None and bool(condition[1] or condition[2])
            branches.append(None if value is None else value != is_not)
        elif branches and word == "endif":
            branches.pop()
        elif branches and word in ("else", "elif"):
            before = branches[-1]
            is_open = before is None or (word == "elif" and not before)
            branches[-1] = None if is_open else not before
        elif False in branches:
            lines[number] = blank(line)
    return "".join(lines)


def _without_content(found: re.Match[str]) -> str:
    text, empty = found[0], blank(found[0])
    if text[0] == '"':
        return f'"{empty[1:-1]}"'
    return empty if text[0] == "/" else f"0{empty[1:]}"


def without_directives(text: str) -> str:
    return _DIRECTIVE.sub(lambda found: blank(found[0]), text)


def includes(text: str) -> Iterator[re.Match[str]]:
    plain = without_comments(text)
    return (found for found in _INCLUDE.finditer(text) if "#" in plain[slice(*found.span())])


@functools.lru_cache(maxsize=128)
def parse(text: str) -> Node:
    import tree_sitter_cuda
    from tree_sitter import Language, Parser

    text = _ATTRIBUTE.sub(lambda found: blank(found[0]), without_directives(text))
    # One byte for each character, so that offsets of bytes are offsets of characters.
    parser = Parser(Language(tree_sitter_cuda.language()))
    return parser.parse(text.encode("ascii", "replace")).root_node


def nodes(root: Node | None, *types: str) -> Iterator[Node]:
    waiting = [] if root is None else [root]
    while waiting:
        node = waiting.pop()
        if not types or node.type in types:
            yield node
        waiting += reversed(node.children)


def node_text(node: Node | None) -> str:
    return " ".join(node.text.decode().split()) if node is not None and node.text else ""


def tokens(root: Node) -> set[str]:
    return {node_text(node) for node in nodes(root) if not node.child_count} - {""}


def lines(node: Node) -> range:
    return range(node.start_point[0] + 1, node.end_point[0] + 2)


def has(declaration: Node, keyword: str) -> bool:
    return any(keyword in (child.type, node_text(child)) for child in declaration.children)


# --- Declarations


@dataclass(frozen=True)
class Declaration:
    name: str
    # Without qualifiers: "float*", "long long".
    type: str
    is_const: bool


@dataclass(frozen=True, eq=False)
class DeclaredFunction:
    name: str
    line: int
    parameters: tuple[Declaration, ...]
    is_template: bool
    node: Node


def declared(declaration: Node) -> list[Declaration]:
    """The variables of a declaration; or a parameter, whose arrays are pointers."""
    kind = declaration.child_by_field_name("type")
    if kind is not None and kind.type == "struct_specifier":
        kind = kind.child_by_field_name("name") or kind
    array = "" if declaration.type == "declaration" else "*"
    found = []
    tops: list[Node | None] = [*declaration.children_by_field_name("declarator")]
    for top in tops or [None]:
        type_, name = node_text(kind), ""
        for node in nodes(top):
            if node.type.endswith("identifier"):
                name = node_text(node)
                break
            type_ += _MARKS.get(node.type.removeprefix("abstract_"), "").replace("[", array)
        found.append(Declaration(name, type_, has(declaration, "const")))
    return found


def function_name(declaration: Node) -> Node | None:
    if declaration.type == "linkage_specification":
        declaration = declaration.children[-1]
    for top in declaration.children_by_field_name("declarator"):
        for function in nodes(top, "function_declarator"):
            return function.child_by_field_name("declarator")
    return None


def declared_function(declaration: Node) -> DeclaredFunction | None:
    """None of a member, and of an instance of a template."""
    name = function_name(declaration)
    if name is None or name.type != "identifier" or name.parent is None:
        return None
    parameters, given = list[Declaration](), name.parent.child_by_field_name("parameters")
    if given is not None and node_text(given) != "(void)":
        for node in given.named_children:
            parameters += declared(node)
    parent, about = declaration.parent, (node_text(name), lines(name).start, tuple(parameters))
    is_template = parent is not None and parent.type == "template_declaration"
    return DeclaredFunction(*about, is_template, declaration)


# --- Statements


class CudaStatements(Statements):
    @functools.cached_property
    def _root(self) -> Node:
        return parse(without_comments(Path(self.file).read_text(errors="replace")))

    def loops(self, line: int) -> list[int]:
        around = [each for each in nodes(self._root, *_LOOPS) if line in lines(each)[1:]]
        return [lines(loop).start for loop in reversed(around)]

    def address(self, line: int) -> list[int]:
        function, found = None, list[int]()
        for node in nodes(self._root, "function_definition"):
            function = node if line in lines(node) else function
        names = set[str]()
        for node in nodes(function, "identifier"):
            if line in lines(node):
                names.add(node_text(node))
        for operators in ({"*"}, {"/", "%"}):
            made: dict[object, Node] = {}
            for node in nodes(function, *_ASSIGNING):
                name = node_text(node.child_by_field_name(_ASSIGNING[node.type])).lstrip("*& ")
                terms = nodes(node, "binary_expression")
                used = {node_text(term.child_by_field_name("operator")) for term in terms}
                if lines(node).start < line and name in names and used & operators:
                    # Of what is declared again the last declaration counts.
                    made[name if node.type == "init_declarator" else node.start_byte] = node
            names = set[str]()
            for node in sorted(made.values(), key=lambda node: -node.start_byte):
                found.append(lines(node).start)
                names |= set(map(node_text, nodes(node, "identifier")))
        return list(dict.fromkeys(found))
