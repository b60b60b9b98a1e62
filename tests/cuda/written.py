"""Kernels that a test writes to a file, and what a launch of one was found to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from gradprobe.cuda import Module, load
from gradprobe.frontends import OPEN, Launches
from gradprobe.frontends.cuda.on_cpu import launch
from gradprobe.frontends.cuda.watch import CudaFinding, CudaSite


def loaded(folder: Path, source: str, **defines: object) -> Module:
    """The kernels of a source, which lies in the folder as my.cu."""
    file = folder / "my.cu"
    file.write_text(source)
    return load(file, defines=defines)


@dataclass
class Watch:
    of: Launches = field(default_factory=Launches)
    findings: list[CudaFinding] = field(default_factory=list)


@contextmanager
def watched(watch: Watch) -> Iterator[Watch]:
    by_lines = launch.by_lines

    def kept(found: list[CudaFinding]) -> list[CudaFinding]:
        merged = [*by_lines(found)]
        watch.findings.extend(merged)
        return merged

    token = OPEN.set(watch.of)
    try:
        with mock.patch.object(launch, "by_lines", kept):
            yield watch
    finally:
        OPEN.reset(token)
    assert watch.of.findings == [each.finding for each in watch.findings]


def findings(
    module: Module, kernel: str, grid, block, shared_bytes: int, *arguments, seed: int = 0
) -> list[CudaFinding]:
    with watched(Watch(Launches(schedule=seed))) as watch:
        module[kernel](grid, block, shared_bytes, *arguments)
    return watch.findings


def clean(
    module: Module, kernel: str, grid, block, shared_bytes: int, *arguments, seed: int = 0
) -> None:
    found = findings(module, kernel, grid, block, shared_bytes, *arguments, seed=seed)
    assert not found, "\n".join(finding.sentence for finding in found)


def at(site: CudaSite | None, module: Module, mark: str) -> bool:
    """Whether a site is the one line that ends in `// mark`."""
    assert site is not None
    lines = enumerate(module.source.text.splitlines(), 1)
    (line,) = [number for number, text in lines if text.endswith(f"// {mark}")]
    is_there = (Path(site.line.file), site.line.line) == (module.source.path, line)
    return is_there and mark in site.line.code
