"""The C types of kernels' parameters: numbers, pointers, and structures with their fields, by their declarations."""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..source.cuda_syntax import declarators, declared_name, has, layers, node_text, nodes

if TYPE_CHECKING:
    from tree_sitter import Node

    from .source import Unit

POINTER, SIGNED, UNSIGNED, FLOATING, OTHER = range(5)
_VECTOR = 5


class Taken(ctypes.Structure):
    """The type of one parameter of a kernel: gp_parameter of the header."""

    _fields_ = (("kind", ctypes.c_int32), ("bytes", ctypes.c_int32), ("of", ctypes.c_int32))
    kind: int
    bytes: int
    of: int
    """Of a pointer, the bytes of a number that it points to; 0 where that is none."""


C_NUMBERS: Mapping[tuple[int, int], Any] = {
    **{(SIGNED, size): getattr(ctypes, f"c_int{8 * size}") for size in (1, 2, 4, 8)},
    **{(UNSIGNED, size): getattr(ctypes, f"c_uint{8 * size}") for size in (1, 2, 4, 8)},
    **{(FLOATING, 4): ctypes.c_float, (FLOATING, 8): ctypes.c_double},
}
# The types as NVRTC has them on 64-bit Linux.
_NAMES = {
    (SIGNED, 1): "char int8_t",
    (SIGNED, 2): "short int16_t",
    (SIGNED, 4): "int int32_t",
    (SIGNED, 8): "long int64_t ptrdiff_t intptr_t ssize_t",
    (UNSIGNED, 1): "bool uint8_t",
    (UNSIGNED, 2): "ushort uint16_t",
    (UNSIGNED, 4): "uint uint32_t",
    (UNSIGNED, 8): "ulong uint64_t size_t uintptr_t",
    (FLOATING, 4): "float",
    (FLOATING, 8): "double",
    (OTHER, 2): "half __half nv_bfloat16 __nv_bfloat16",
    (OTHER, 0): "void",
}
_SCALARS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
# Types by which several elements of a tensor are read at once.
_SINGLE = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "float": 4, "double": 8, "longlong": 8}
_VECTORS = {f"{name}{count}": (_VECTOR, size * count) for name, size in _SINGLE.items() for count in (2, 3, 4)}
_VECTORS |= dict.fromkeys(("half2", "__half2", "nv_bfloat162", "__nv_bfloat162"), (_VECTOR, 4))


@dataclass(frozen=True)
class Field:
    """A member of a structure."""

    name: str
    offset: int
    type: CType


@dataclass(frozen=True)
class CType:
    """A type that lies in memory as the C++ compilers of 64-bit Linux have it."""

    words: str
    taken: Taken
    alignment: int
    fields: tuple[Field, ...] = ()
    """Of a structure."""
    count: int = 1
    """Of an array, its elements, each of the type `element`."""
    element: CType | None = None

    @property
    def bytes(self) -> int:
        return self.taken.bytes


def type_of(unit: Unit, declared: str) -> CType | None:
    """The type behind words such as "unsigned long long", "float*" or "Params"; None where it is not known."""
    meant = meanings(unit)
    if declared.endswith(("*", "&")):
        known = _number(declared.rstrip("*&"), meant) if declared.count("*") == 1 else (OTHER, 8)
        return CType(declared, Taken(POINTER, 8, known[1] if known and known[0] != _VECTOR else 0), 8)
    known = _number(declared, meant)
    if known is not None and known[0] == _VECTOR:
        return _vector(_meant(declared, meant).removeprefix("const "), known[1])
    if known is not None:
        return CType(declared, Taken(known[0], known[1], 0), max(1, known[1]))
    return _structures(unit).get(_meant(declared, meant).removeprefix("struct "))


_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "nv_bfloat16": "bfloat16"}


def pointed_to(unit: Unit, declared: str) -> str:
    """torch's name of the dtype that a pointer's elements have; "" where it does not tell."""
    return _DTYPES.get(_meant(declared.rstrip("*"), meanings(unit)).removeprefix("__"), "")


def number_bytes(unit: Unit, declared: str) -> int:
    """The bytes of a number or vector by its type; 0 where that is neither."""
    known = _number(declared, meanings(unit))
    return known[1] if known else 0


@functools.lru_cache(maxsize=64)
def meanings(unit: Unit) -> Mapping[str, str]:
    """The types behind macros and aliases of the source. Options of the compiler override macros."""
    text = unit.source.everything
    found = dict(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w ]+?)[ \t]*$", text, re.MULTILINE))
    found |= dict(re.findall(r"\busing\s+(\w+)\s*=\s*([\w ]+?)\s*;", text))
    found |= {name: kind for kind, name in re.findall(r"\btypedef\s+([\w ]+?)\s+(\w+)\s*;", text)}
    found |= dict(re.findall(r"\bconst(?:expr)?\s+(?:int|unsigned|size_t|long)\s+(\w+)\s*=\s*([\w *+]+?)\s*;", text))
    return found | dict(unit.defines)


def _meant(text: str, meant: Mapping[str, str]) -> str:
    for _ in range(8):  # an alias of an alias
        text = " ".join(meant.get(word, word) for word in text.replace("std::", "").split())
    return text


def _number(declared: str, meant: Mapping[str, str]) -> tuple[int, int] | None:
    """(kind, bytes) of a number or vector."""
    declared = _meant(declared, meant)
    left = sorted(word for word in declared.split() if word not in ("const", "volatile", "signed", "unsigned"))
    plain = " ".join(left[1:] if len(left) > 1 and left[0] == "int" else left).replace("long long", "long") or "int"
    found = _SCALARS.get(plain, _VECTORS.get(plain))
    return (UNSIGNED, found[1]) if found and "unsigned" in declared.split() else found


def _vector(name: str, size: int) -> CType:
    """`float4` and its like. One of three lies like its elements; others at multiples of their size, up to 16."""
    count = int(name[-1])
    kind = _SCALARS.get({"uchar": "uint8_t", "longlong": "long"}.get(name[:-1], name[:-1]), (OTHER, size // count))
    element = CType(name[:-1], Taken(kind[0], kind[1], 0), kind[1])
    fields = tuple(Field(part, at * element.bytes, element) for at, part in enumerate("xyzw"[:count]))
    return CType(name, Taken(OTHER, size, 0), element.alignment if count == 3 else min(size, 16), fields)


@functools.lru_cache(maxsize=64)
def _structures(unit: Unit) -> Mapping[str, CType]:
    """The structures of a source that hold numbers, pointers, arrays and structures alone, by name."""
    found: dict[str, CType] = {}
    meant = meanings(unit)
    for root in unit.source.trees:
        for node in nodes(root, "struct_specifier", "class_specifier"):
            made = _structure(unit, node, found, meant)
            if made is not None:
                found |= dict.fromkeys(_names_of(node), made)
    return found


def _names_of(node: Node) -> Iterator[str]:
    """What a structure is called: by its tag, and by the typedef around it."""
    yield node_text(node.child_by_field_name("name"))
    if node.parent is not None and node.parent.type == "type_definition":
        yield node_text(node.parent.child_by_field_name("declarator"))


def _structure(unit: Unit, node: Node, known: Mapping[str, CType], meant: Mapping[str, str]) -> CType | None:
    """The layout of a structure; None where it has a base, bit fields, virtual functions or members of other types."""
    body, name = node.child_by_field_name("body"), node_text(node.child_by_field_name("name"))
    is_template = node.parent is not None and node.parent.type == "template_declaration"
    if body is None or is_template or any(child.type == "base_class_clause" for child in node.children):
        return None
    fields: list[Field] = []
    end = alignment = 0
    for declared, member in _members(body):
        kind = _member_type(unit, declared, member, known, meant)
        if kind is None:
            return None
        offset = -(-end // kind.alignment) * kind.alignment
        fields.append(Field(node_text(declared_name(member)), offset, kind))
        end, alignment = offset + kind.bytes, max(alignment, kind.alignment)
    size = -(-end // max(1, alignment)) * max(1, alignment)
    return CType(name, Taken(OTHER, max(1, size), 0), max(1, alignment), tuple(fields))


def _members(body: Node) -> Iterator[tuple[Node, Node | None]]:
    """(its declaration, its declarator) of each member that takes room; no declarator of what is not understood."""
    for node in body.named_children:
        if node.type != "field_declaration" or has(node, "static"):
            if any(node_text(leaf) == "virtual" for leaf in node.children):
                yield node, None
            continue
        if any(child.type == "bitfield_clause" for child in node.children):
            yield node, None
        for declarator in declarators(node):
            if not any(layer.type == "function_declarator" for layer in layers(declarator)):
                yield node, declarator


def _member_type(
    unit: Unit, declared: Node, member: Node | None, known: Mapping[str, CType], meant: Mapping[str, str]
) -> CType | None:
    if member is None:
        return None
    kind = node_text(declared.child_by_field_name("type"))
    around = list(layers(member))
    stars = sum(layer.type.startswith(("pointer", "reference")) for layer in around)
    found = known.get(_meant(kind, meant).removeprefix("struct ")) if not stars else None
    found = found or type_of_member(kind + "*" * stars, unit)
    # The outermost layer is the last pair of brackets: that of the innermost elements.
    for layer in around if found is not None else ():
        if layer.type == "array_declarator":
            count = _extent(node_text(layer.child_by_field_name("size")), meant)
            if count is None or found is None:
                return None
            taken = Taken(OTHER, found.bytes * count, 0)
            found = CType(f"{found.words}[{count}]", taken, found.alignment, count=count, element=found)
    return found


def type_of_member(declared: str, unit: Unit) -> CType | None:
    """The type of a member that is no structure."""
    is_plain = declared.endswith("*") or _number(declared, meanings(unit)) is not None
    return type_of(unit, declared) if is_plain else None


def _extent(text: str, meant: Mapping[str, str]) -> int | None:
    """The length of an array by its expression: literals, macros and constants, added and multiplied."""
    for _ in range(8):
        text = re.sub(r"[A-Za-z_]\w*", lambda name: f"({meant.get(name[0], name[0])})", text)
    text = re.sub(r"[()\s]", "", text)
    if not re.fullmatch(r"\d+([*+]\d+)*", text):
        return None
    return sum(math.prod(map(int, part.split("*"))) for part in text.split("+"))
