"""Runs every planted mix-up of strides, each in a process forked for it, and tells what bits came.

python -m tests.faults.stride_runs flash        one line of JSON a mix-up, the first of the kernels as they are
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradprobe.running.backend import prepare_backend

from .planting import KERNELS
from .stride_mixups import mixups

if TYPE_CHECKING:
    from gradprobe.cases.layouts import Inputs

LAYOUTS = ("contiguous", "distinct")
# Many times what a run takes: one that goes astray ends.
_SECONDS = 60
# All tensors of one shape, two of everything that has a stride, and one tile of 32 rows with a part of it unused.
SIZES = {"batch": 2, "heads": 2, "seqlen": 17, "head_dim": 16, "bias": False, "block_m": 32, "block_n": 32}


def main(file: str) -> None:
    """Prints for each mix-up what came of it; a crash is told as one."""
    problems = {layout: _problem(file, layout) for layout in LAYOUTS}
    _give_room(max(tensor.untyped_storage().nbytes() for tensor in problems["distinct"].tensors.values()))
    with tempfile.TemporaryDirectory() as folder:
        _tell(name="none", **_apart(lambda: _digests(KERNELS / f"{file}.py", file, problems, forward=True)))
        for mixup in (mixup for mixup in mixups(file) if not mixup.obstacle):
            path, forward = mixup.write(Path(folder)), any("forward" in kernel for kernel in mixup.kernels)
            _tell(name=mixup.name, **_apart(lambda: _digests(path, file, problems, forward=forward)))  # noqa: B023


def _tell(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def _problem(file: str, layout: str) -> Inputs:
    """Inputs and outputs, with O and LSE of the kernels as they are."""
    from gradprobe.cases.draw import draw
    from gradprobe.cases.layouts import place
    from gradprobe.cases.outputs import outputs_of
    from tests.cases import lazy_case, softmax_case

    case = (lazy_case if file == "lazy" else softmax_case)(**SIZES)
    values = draw(case)
    module = importlib.import_module(f"gradprobe.kernels.triton.{file}")
    o, lse = getattr(module, f"{file}_forward")(**{name: value for name, value in values.items() if name != "do"})
    values |= {"lse": lse} | ({"o": o} if file == "flash" else {})
    return place(values | outputs_of(case, ("dq", "dk", "dv"), values), (("all", layout),))


def _give_room(size: int) -> None:
    """From now on torch.empty gives NaN, with as many more numbers behind as the strides of any tensor reach.

    So a wrapper's own O is written through a caller's strides without harm to the memory of others, and what is never
    written shows.
    """
    import torch

    def empty(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return torch.full((count + size,), torch.nan, dtype=dtype, device=device)[:count].view(shape)

    torch.empty = empty


def _apart(act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a function returns in a process of its own, and the seconds it took; or how that ended."""
    start = time.perf_counter()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(_SECONDS)
        try:
            os.write(writing, json.dumps(act()).encode())
            os._exit(0)
        finally:  # nothing of the parent's, such as its folder, may be undone here
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = {"seconds": round(time.perf_counter() - start, 3)}
    return found | (json.loads(answer) if status == 0 else {"crash": _in_words(status)})


def _in_words(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"


def _digests(path: Path, file: str, problems: Mapping[str, Inputs], *, forward: bool) -> dict[str, Any]:
    """By layout and result, a digest of its bits.

    Args:
        forward: whether to run the forward too; where no mix-up is in it, the backward takes the right O and LSE.
    """
    module = _load(path)
    return {layout: _digests_in(module, file, problem, forward=forward) for layout, problem in problems.items()}


def _digests_in(module: ModuleType, file: str, problem: Inputs, *, forward: bool) -> dict[str, str]:
    tiles = {name: SIZES[name] for name in ("block_m", "block_n")}
    given = dict(problem.tensors)
    results = {}
    if forward:
        inputs = {name: given[name] for name in ("q", "k", "v", "tau") if name in given}
        results["O"], results["LSE"] = getattr(module, f"{file}_forward")(**inputs, **tiles)
        given |= {"lse": results["LSE"]}
    results |= getattr(module, f"{file}_backward")(**given, **tiles)
    return {name: hashlib.sha256(result.contiguous().numpy().tobytes()).hexdigest() for name, result in results.items()}


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    prepare_backend("cpu")
    import torch

    torch.set_num_threads(1)
    from gradprobe.running import interpreter

    interpreter.keep_patched_language()
    main(sys.argv[1])
