"""How dots multiply float32 on a GPU."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from ..frontends import CUDA, CUDA_ON_CPU, Launches, replaced
from ..model.case import DOTS

# `%s = tt.dot %q, %k, %acc, inputPrecision = tf32 : tensor<32x16xf32> * ...`; what is IEEE has no such word.
_DOT = re.compile(
    r"\btt\.dot [^:\n]*?(?:inputPrecision = (\w+)[^:\n]*)?: tensor<(?:\d+x)+f32\b[^\n]*?loc\((#\w+)\)"
)
_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
_PLACE = re.compile(r'"([^"]*)":(\d+):\d+')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CUBLAS = "torch.backends.cuda.matmul"
_SETTERS = "_set_cublas_allow_tf32 _set_float32_matmul_precision _set_fp32_precision_setter"


@dataclass(frozen=True)
class Dots:
    way: str
    by: str
    file: str = ""
    lines: tuple[int, ...] = ()

    @property
    def is_torch(self) -> bool:
        return self.by == _CUBLAS


def dots_of_launches(launches: Launches, of_torch: Iterable[Dots]) -> list[Dots]:
    entries = list[Any]()
    for launch in launches.started:
        if launch.backend in (CUDA, CUDA_ON_CPU):
            entries.append(launch.entry)
    found = {*of_triton(launches.compiled), *of_cuda(entries), *of_torch}
    return sorted(found, key=lambda dots: (dots.by, dots.way, dots.file, dots.lines))


def of_triton(compiled: Iterable[Any]) -> Iterator[Dots]:
    for kernel in compiled:
        name, text = str(kernel.metadata.name), kernel.asm.get("ttir")
        if text is not None:
            yield from list(in_ttir(name, str(text))) or [Dots("ieee", name)]


def in_ttir(kernel: str, text: str) -> Iterator[Dots]:
    aliases = dict(_ALIAS.findall(text))
    found: dict[tuple[str, str], set[int]] = {}
    for way, alias in _DOT.findall(text):
        file, line = _place(alias, aliases)
        # A way that is not known is taken for the coarsest.
        known = way or "ieee" if way in ("", *DOTS) else DOTS[-1]
        found.setdefault((known, file), set()).add(line)
    for (way, file), lines in found.items():
        yield Dots(way, kernel, file, tuple(sorted(lines - {0})))


def _place(alias: str, aliases: Mapping[str, str]) -> tuple[str, int]:
    for _ in aliases:
        if place := _PLACE.search(words := aliases.get(alias, "")):
            return place[1], int(place[2])
        alias, *_ = re.findall(r"#loc\d*", words) or [""]
    return "", 0


def of_cuda(entries: Iterable[Any]) -> Iterator[Dots]:
    for entry in entries:
        texts = entry.source.text, *(text for _, text in entry.source.included)
        names_it = re.search("tf32|tfloat32", _COMMENT.sub("", "\n".join(texts)))
        yield Dots("tf32" if names_it else "ieee", entry.name, str(entry.source.path))


@contextlib.contextmanager
def matmuls_watched(found: list[Dots]) -> Iterator[None]:
    import torch

    def note(result: Any = None) -> Any:
        way = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
        found.append(Dots(way, _CUBLAS))
        return result

    def noting(setter: Any) -> Any:
        return lambda *args: note(setter(*args))

    with contextlib.ExitStack() as stack:
        for name in _SETTERS.split():
            if hasattr(torch._C, name):
                stack.enter_context(replaced(torch._C, name, noting(getattr(torch._C, name))))
        note()
        yield


def of_autograd(output: Any) -> Iterator[Dots]:
    """By DefaultGemmType in ATen's gemm_kernel_utils.h."""
    waiting, done = [output.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in done:
            done.add(node)
            waiting += map(itemgetter(0), node.next_functions)
            if "EfficientAttention" in node.name():
                yield Dots("tf32x3", "PyTorch's memory-efficient attention")
