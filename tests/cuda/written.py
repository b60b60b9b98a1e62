"""Kernels that a test writes to a file, and what a launch of one was found to do."""

from __future__ import annotations

from pathlib import Path

from gradprobe.cuda import Module, load
from gradprobe.frontends import Launches
from gradprobe.frontends.cuda import Watch, watched
from gradprobe.frontends.cuda.watch import CudaFinding, CudaSite


def loaded(folder: Path, source: str, **defines: object) -> Module:
    """The kernels of a source, which lies in the folder as my.cu."""
    file = folder / "my.cu"
    file.write_text(source)
    return load(file, defines=defines)


def findings(
    module: Module, kernel: str, grid, block, shared_bytes: int, *arguments, seed: int = 0
) -> list[CudaFinding]:
    with watched(Watch(Launches(schedule=seed))) as watch:
        module[kernel](grid, block, shared_bytes, *arguments)
    return watch.findings


def clean(
    module: Module, kernel: str, grid, block, shared_bytes: int, *arguments, seed: int = 0
) -> None:
    """Launches it, and wants nothing found."""
    found = findings(module, kernel, grid, block, shared_bytes, *arguments, seed=seed)
    assert not found, "\n".join(finding.sentence for finding in found)


def at(site: CudaSite | None, module: Module, mark: str) -> bool:
    """Whether a site is the one line that ends in `// mark`."""
    assert site is not None
    lines = [
        n
        for n, line in enumerate(module.source.text.splitlines(), 1)
        if line.endswith(f"// {mark}")
    ]
    (line,) = lines
    return (
        Path(site.line.file) == module.source.path
        and site.line.line == line
        and mark in site.line.code
    )
