"""Functions of the host in a CUDA source that launch its kernels: which there are, and their text for g++."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..source.cuda_syntax import blank, has, leaves, node_text, nodes, parse, without_comments
from .source import CudaSource, LeftOut, Parameter, declared_line, declared_parameter, host_code, needs_python

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class HostFunction:
    """A function that launches kernels, by itself or through others."""

    name: str
    line: int
    parameters: tuple[HostParameter, ...]


@dataclass(frozen=True)
class HostParameter(Parameter):
    """One of its parameters."""

    is_const: bool = False
    """Whether what it points to is."""


@functools.lru_cache(maxsize=64)
def launching_functions(source: CudaSource) -> Mapping[str, HostFunction]:
    """The functions that launch kernels and take C values alone, by name."""
    defined = dict(_functions(source))
    launching: set[str] = set()
    while more := {name for name, node in defined.items() if _launches(node, launching)} - launching:
        launching |= more
    kept = {name: node for name, node in defined.items() if name in launching and _is_kept(source, node)}
    return {name: _function(name, node) for name, node in kept.items()}


def _is_kept(source: CudaSource, node: Node) -> bool:
    return any(one.start <= node.start_byte < one.end for one in _kept(source))


def _functions(source: CudaSource) -> Iterator[tuple[str, Node]]:
    """The host functions of a file that are neither templates nor members nor overloaded."""
    found: dict[str, Node | None] = {}
    for node in nodes(parse(without_comments(source.text)), "function_definition"):
        function = next(iter(nodes(node, "function_declarator")), None)
        name = function.child_by_field_name("declarator") if function is not None else None
        is_template = node.parent is not None and node.parent.type == "template_declaration"
        is_on_device = has(node, "__global__") or has(node, "__device__")
        if name is None or name.type != "identifier" or is_template or is_on_device:
            continue
        found[node_text(name)] = None if node_text(name) in found else node
    yield from ((name, node) for name, node in found.items() if node is not None and name != "main")


def _launches(node: Node, others: set[str]) -> bool:
    called = (node_text(call.child_by_field_name("function")) for call in nodes(node, "call_expression"))
    return any(True for _ in nodes(node, "kernel_call_syntax")) or any(name in others for name in called)


def _function(name: str, node: Node) -> HostFunction:
    function = next(nodes(node, "function_declarator"))
    given = function.child_by_field_name("parameters")
    taken = given.named_children if given is not None and node_text(given) != "(void)" else ()
    return HostFunction(name, declared_line(function), tuple(map(_parameter, taken)))


def _parameter(node: Node) -> HostParameter:
    plain = declared_parameter(node)
    return HostParameter(plain.name, plain.type, is_const=any(node_text(child) == "const" for child in node.children))


def with_launches(source: CudaSource) -> str:
    """The text with its host code, each `<<<...>>>` a call; spaces for what needs PyTorch or Python, and for `main`."""
    kept = _kept(source)
    text = source.text
    for one in source.host:
        text = text if one in kept else blank(text, one.start, one.end)
    root = parse(without_comments(source.text))
    for call in sorted(nodes(root, "call_expression"), key=lambda node: -node.start_byte):
        sizes = next((child for child in call.children if child.type == "kernel_call_syntax"), None)
        if sizes is not None and _is_kept(source, call):
            kernel, given = (source.text[a:b] for a, b in _parts(call, sizes))
            launch = f'gp_launching("{" ".join(kernel.split())}", &{kernel}, {given})'
            text = text[: call.start_byte] + launch + text[sizes.end_byte :]
    return text


def _parts(call: Node, sizes: Node) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where the kernel's name and the sizes of a launch stand."""
    return (call.start_byte, sizes.start_byte), (sizes.start_byte + len("<<<"), sizes.end_byte - len(">>>"))


@functools.lru_cache(maxsize=64)
def _kept(source: CudaSource) -> tuple[LeftOut, ...]:
    """The host code that g++ can run: what uses neither PyTorch nor Python nor a function that does."""
    plain = without_comments(source.text)
    pieces = [one for one in host_code(source.text, plain) if not one.name.startswith("#")]
    tokens = {one: {node_text(leaf) for leaf in leaves(parse(plain[one.start : one.end]))} for one in pieces}
    out = [one for one in pieces if one.name == "main" or needs_python(plain[one.start : one.end])]
    while more := [one for one in pieces if one not in out and tokens[one] & ({other.name for other in out} - {""})]:
        out += more
    return tuple(one for one in pieces if one not in out)
