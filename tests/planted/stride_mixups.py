"""The ways to use one tensor's stride for another's, generated from what the kernels of lazy and flash know."""

import ast
import re
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from pathlib import Path

from tests.commands.strides.benches import bench_for, trials_for
from tests.planted.planting import KERNELS

TENSORS = ("q", "k", "v", "o", "do", "dq", "dk", "dv")
DIMS = ("batch", "head", "row", "dim")
_OF_KEYS = ("k", "v", "dk", "dv")


@dataclass(frozen=True)
class Mixup:
    """One tensor addressed with another's stride of the same dim, wherever a kernel knows both."""

    file: str
    """Of kernels/triton: "lazy" or "flash"."""
    tensor: str
    other: str
    """Whose stride is used."""
    dim: str
    kernels: tuple[str, ...]
    """Those that have both strides as parameters, and are edited."""

    @property
    def name(self) -> str:
        return f"{self.tensor} by {self.other}, {self.dim}"

    def plant(self, source: str) -> str:
        """The kernels' source with the mix-up in it; parameters keep their names and order."""
        lines = source.splitlines(keepends=True)
        own = re.compile(rf"\b{_stride(self.tensor, self.dim)}\b")
        for function in _functions(source):
            if function.name in self.kernels:
                for at in range(function.body[0].lineno - 1, function.end_lineno or 0):
                    lines[at] = own.sub(_stride(self.other, self.dim), lines[at])
        return "".join(lines)

    def write(self, folder: Path) -> Path:
        """A copy of the kernel file with the mix-up in it."""
        path = folder / f"{self.file}_{self.tensor}_by_{self.other}_{self.dim}.py"
        path.write_text(self.plant(source_of(self.file)))
        return path


def mixups(file: str) -> list[Mixup]:
    """Of a kernel file those of tensors that some kernel of it has both of."""
    found = [_mixup(file, *pair, dim) for pair in permutations(TENSORS, 2) for dim in DIMS]
    return [mixup for mixup in found if mixup.kernels]


def source_of(file: str) -> str:
    return (KERNELS / f"{file}.py").read_text()


def _mixup(file: str, tensor: str, other: str, dim: str) -> Mixup:
    known = {_stride(tensor, dim), _stride(other, dim)}
    kernels = tuple(
        function.name for function in _functions(source_of(file))
        if known <= {parameter.arg for parameter in function.args.args}
    )  # fmt: skip
    return Mixup(file, tensor, other, dim, kernels)


def _stride(tensor: str, dim: str) -> str:
    """The name of a stride in the kernels' parameters: stride_qm, stride_kn, stride_dod."""
    letters = {"batch": "b", "head": "h", "row": "n" if tensor in _OF_KEYS else "m", "dim": "d"}
    return f"stride_{tensor}{letters[dim]}"


@cache
def _functions(source: str) -> tuple[ast.FunctionDef, ...]:
    return tuple(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))


# All tensors of one shape, two of everything that has a stride, and one tile of 32 rows with a part of it unused.
SIZES = {"batch": 2, "heads": 2, "seqlen": 17, "head_dim": 16, "bias": False}
SIZES |= {"block_m": 32, "block_n": 32}


class Mixups:
    """Called with a mix-up, or None for the kernels as they are: the verdicts of contiguous and distinct layouts."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._folder = tempfile.TemporaryDirectory()

    def __call__(self, mixup: Mixup | None) -> tuple[str, str]:
        path = None if mixup is None else mixup.write(Path(self._folder.name))
        bench = bench_for(f"{path}:{self._file}_intermediates" if path else self._file, **SIZES)
        trials = trials_for(bench)
        first = bench.run(trials["contiguous"])
        return first.verdict, bench.run(replace(trials["distinct"], thorough=False)).verdict
