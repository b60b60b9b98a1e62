"""CUDA C++ as a syntax tree. The offsets of every node are those of the characters in the file."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
# The conditions whose value is the same under NVRTC and under the header for CPUs, which defines NVRTC's macros.
_TRUE = ("1", "true", "defined(__CUDACC__)", "defined(__CUDACC_RTC__)", "!defined(__NVCC__)")
_FALSE = ("0", "false", "!defined(__CUDACC__)", "!defined(__CUDACC_RTC__)", "defined(__NVCC__)")
_CONDITIONS = dict.fromkeys(_TRUE, True) | dict.fromkeys(_FALSE, False)
_MARKS = {"pointer_declarator": "*", "reference_declarator": "&", "array_declarator": "["}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function as it is written."""

    name: str
    type: str
    """Without qualifiers: "float*", "long long"."""
    is_const: bool = False
    """Whether it, or what it points to, is."""


@dataclass(frozen=True)
class DeclaredFunction:
    """A function that is declared or defined under a plain name."""

    name: str
    line: int
    """In which the name stands."""
    parameters: tuple[Parameter, ...]
    is_template: bool
    node: Node


# --- Text


def blank(text: str, start: int, end: int) -> str:
    """The text with spaces from one offset to another; line breaks stay."""
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def without_comments(text: str) -> str:
    """The text without comments, the contents of literals, and what `#if` leaves out; all else keeps its place.

    The preprocessor is a language of lines. An `#if` may cut through a declaration, so its branches are decided here
    and not in the tree. A branch whose condition is not known stays.
    """
    lines = _LEXICAL.sub(_emptied, text).splitlines(keepends=True)
    branches: list[bool | None] = []
    for number, line in enumerate(lines):
        directive = _DIRECTIVE.match(line)
        if directive is not None and directive[1] in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
            _take_branch(branches, directive[1], "".join(directive[2].split()))
        elif False in branches:
            lines[number] = blank(line, 0, len(line))
    return "".join(lines)


def _emptied(found: re.Match[str]) -> str:
    text = found[0]
    empty = re.sub(r"\\(?!\n)|[^\\\n]", " ", text)  # a `\\` at the end of a line continues a directive
    if text[0] == '"':  # still a string
        return f'"{empty[1:-1]}"'
    return empty if text[0] == "/" else f"0{empty[1:]}"


def _take_branch(branches: list[bool | None], name: str, condition: str) -> None:
    """Notes whether the lines after a directive count; None where an option decides."""
    if name.startswith("if"):
        known = _CONDITIONS.get(condition if name == "if" else f"defined({condition})")
        branches.append(not known if known is not None and name == "ifndef" else known)
    elif branches and name == "endif":
        branches.pop()
    elif branches and branches[-1] is not None:
        branches[-1] = not branches[-1] if name == "else" else (None if not branches[-1] else False)


def is_directive(text: str, place: int) -> bool:
    """Whether a place lies in a line of the preprocessor."""
    return any(line.start() <= place < line.end() for line in _DIRECTIVE.finditer(text))


def includes(text: str, plain: str) -> Iterator[re.Match[str]]:
    """Every `#include` of a text that counts; group 1 is what is included. `plain`: the text without comments."""
    return (found for found in _INCLUDE.finditer(text) if "#" in plain[found.start() : found.end()])


# --- Trees


@functools.lru_cache(maxsize=128)
def parse(text: str) -> Node:
    """The tree of a text from `without_comments`, its directives left out."""
    for pattern in (_DIRECTIVE, _ATTRIBUTE):
        text = pattern.sub(lambda found: blank(found[0], 0, len(found[0])), text)
    # One byte for each character, so that the parser's offsets of bytes are offsets of characters.
    return _parser().parse(text.encode("ascii", "replace")).root_node


@functools.lru_cache(maxsize=1)
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


def leaves(root: Node) -> Iterator[Node]:
    """The tokens under a node."""
    return (node for node in nodes(root) if not node.child_count)


def node_text(node: Node | None) -> str:
    """The text of a node with single spaces; "" for no node."""
    return " ".join(node.text.decode().split()) if node is not None and node.text else ""


def has(node: Node, word: str) -> bool:
    """Whether a declaration begins with a keyword such as `__global__` or `extern`."""
    return any(child.type == word or node_text(child) == word for child in node.children)


# --- Declarations


def declarators(declaration: Node) -> list[Node]:
    """What is declared, each with its pointers, references and brackets."""
    found = declaration.children_by_field_name("declarator")
    return [(_inside(each) or each) if each.type == "init_declarator" else each for each in found]


def declared_name(declarator: Node | None) -> Node | None:
    """The name inside a declarator: that of `*name[3]`."""
    name = next(reversed([*_layers(declarator)]), None)
    while name is not None and (last := name.child_by_field_name("name")) is not None:
        name = last  # of `scope::name` and of `name<int>`
    return name if name is not None and name.type.endswith("identifier") else None


def declared_type(declaration: Node, declarator: Node | None) -> str:
    """The type of what is declared, without qualifiers; an array is a pointer if it is a parameter."""
    kind = declaration.child_by_field_name("type")
    named = kind.child_by_field_name("name") if kind is not None and kind.type == "struct_specifier" else None
    marks = "".join(_MARKS.get(layer.type.removeprefix("abstract_"), "") for layer in _layers(declarator))
    return node_text(named or kind) + marks.replace("[", "" if declaration.type == "declaration" else "*")


def function_in(declaration: Node) -> Node | None:
    """The declarator of the function that is declared or defined; None of anything else."""
    if declaration.type == "linkage_specification":
        declaration = declaration.child_by_field_name("body") or declaration
    found = (each for top in declarators(declaration) for each in nodes(top, "function_declarator"))
    return next(found, None)


def declared_function(declaration: Node) -> DeclaredFunction | None:
    """The function that is declared or defined; None of anything else, a member, and one instance of a template."""
    function = function_in(declaration)
    name = function.child_by_field_name("declarator") if function is not None else None
    if function is None or name is None or name.type != "identifier":
        return None
    given, parameters = function.child_by_field_name("parameters"), []
    for node in given.named_children if given is not None and node_text(given) != "(void)" else ():
        declarator = node.child_by_field_name("declarator")
        kind = declared_type(node, declarator)
        parameters.append(Parameter(node_text(declared_name(declarator)), kind, has(node, "const")))
    is_template = declaration.parent is not None and declaration.parent.type == "template_declaration"
    line = name.start_point[0] + 1
    return DeclaredFunction(node_text(name), line, tuple(parameters), is_template, declaration)


def _layers(declarator: Node | None) -> Iterator[Node]:
    """A declarator such as `*name[3]` and what is inside it, down to the name."""
    while declarator is not None:
        yield declarator
        declarator = _inside(declarator)


def _inside(declarator: Node) -> Node | None:
    if not declarator.type.endswith("declarator"):
        return None
    inner = (child for child in declarator.named_children if child.type.endswith(("declarator", "identifier")))
    return declarator.child_by_field_name("declarator") or next(inner, None)
