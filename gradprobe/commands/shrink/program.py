"""Files that show a fault: a script of torch and the target alone, with its tensors as they lie; a pytest test."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...inputs.guard_bands import MAPPED
from ...inputs.history import CheckRequest
from ...inputs.options import OPTIONS
from ...model.assignment import PLAIN
from ...model.intermediates import GRADIENT_OF
from ...model.report import Report
from ...model.writing import visible
from ...numerics.compare import allowed
from ...numerics.evidence import LayoutRun, MeasuredRun
from ...probing.experiment import Experiment, inputs_of, layouts_of
from ...render.console import first_line
from ...targets.bind import bind
from ...targets.builtin import BUILTINS
from ...targets.find import Target, parts_of

if TYPE_CHECKING:
    from torch import Tensor

    from ...inputs.tensor_layouts import Inputs

_HERE = "@HERE@"


@dataclass(frozen=True)
class Script:
    source: str
    """A placeholder stands for the path from the script's folder to the target's file or root folder."""
    path: str
    """That file or folder; "" where the target's module is imported from wherever Python finds it."""

    def at(self, file: Path) -> str:
        """The source of the script as that file."""
        here = os.path.relpath(self.path or ".", file.resolve().parent)
        return self.source.replace(_HERE, here)


def script_of(
    report: Report, run: LayoutRun | None, experiment: Experiment
) -> tuple[Script | None, str]:
    """The script of a case with one run; or None, and why there is none.

    Args:
        run: the one that is wrong; None where several make a report, or none does.
    """
    if why := _obstacle(report, run, experiment):
        return None, why
    assert run is not None
    assert run.measured is not None
    inputs = inputs_of(experiment, layouts_of(experiment.case)[0])
    body = "".join(_body(experiment, inputs, run.measured))
    # Whether the comparison of the script finds something wrong in the results.
    import torch

    space: dict[str, Any] = {"torch": torch, "target": None}
    exec(compile(body, "shrunk.py", "exec"), space)
    if not space["wrong"]({name.lower(): x for name, x in run.measured.raw.values.items()}):
        return None, "what is wrong is a matrix of scores, or in another convention"
    imports, imported, path = _import(experiment.target)
    source = _head(report, imports) + imported + body + END
    return Script(re.sub("\n{4,}", "\n\n\n", source), path), ""


def _obstacle(report: Report, run: LayoutRun | None, experiment: Experiment) -> str:
    """Why no script without gradprobe can show the fault; "" where one can."""
    case, target = experiment.case, experiment.target
    interpreted = report.target.backend == "triton-interpreter"
    if case.as_cuda or case.shapes != PLAIN or (case.bias_rank, case.mask_rank) != (4, 4):
        return "the target takes its tensors in another form, into which gradprobe turns them"
    if "__signature__" in vars(target.function):
        return "the target takes no arguments by name, and gradprobe calls it through a function that does"
    if case.dtype == "bfloat16" and interpreted:
        return "Triton's interpreter computes bfloat16 wrongly by itself"
    if case.poison:
        return "it takes what gradprobe does to memory"
    if experiment.reference is not None:
        return "the reference is one of your own"
    if run is None:
        return "it takes several runs to show"
    if run.measured is None or run.measured.comparison.matches:
        return "no number of its own results is wrong in one run"
    return ""


def _head(report: Report, imports: str) -> str:
    first = first_line(report).removeprefix("FIRST MISMATCH ")
    setting = ""
    if report.target.backend == "triton-interpreter":
        setting = (
            'import os\n\nos.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported\n\n'
        )
    return f'''"""{report.target.name} is wrong: {first}

Needs torch and the target alone. It ends with an AssertionError while the fault is there. With gradprobe:

    {report.reproduce}
"""

{setting}{imports}
import torch
'''


_FROM_FILE = """
FILE = Path(__file__).resolve().parent / "@HERE@"
sys.path.insert(0, str(FILE.parent))
spec = importlib.util.spec_from_file_location("shrunk_target", FILE)
module = importlib.util.module_from_spec(spec)
sys.modules["shrunk_target"] = module
spec.loader.exec_module(module)
target = module.{name}
"""


def _import(target: Target) -> tuple[str, str, str]:
    """The imports of a script, the source that makes `target` of them, and the path that this names."""
    word = BUILTINS[target.name].spec if target.name in BUILTINS else target.name
    place, name = parts_of(word)
    if place.endswith(".py"):
        imports = "import importlib.util\nimport sys\nfrom pathlib import Path\n"
        return imports, _FROM_FILE.format(name=name), str(Path(place).resolve())
    line = f"\nfrom {place} import {name} as target\n"
    if target.name in BUILTINS:
        return "", line, ""
    found = f'\nsys.path.insert(0, str(Path(__file__).resolve().parent / "{_HERE}"))'
    return "import sys\nfrom pathlib import Path\n", found + line, os.getcwd()


def _body(experiment: Experiment, inputs: Inputs, measured: MeasuredRun) -> Iterator[str]:
    case, target = experiment.case, experiment.target
    yield f"\nDEVICE = {case.device!r}\n{LAYING}\nVALUES = {{\n"
    yield from (f"    {name!r}: {literal(value)},\n" for name, value in inputs.values.items())
    yield "}\n\n# Guard values stand around and between the elements.\nSTORAGES, TENSORS = {}, {}\n"
    numbers: dict[int, int] = {}
    for name, tensor in inputs.tensors.items():
        storage = tensor.untyped_storage()
        number = numbers.setdefault(storage.data_ptr(), len(numbers))
        size = storage.nbytes() // tensor.element_size()
        lies = f"{number}, {size}, {tuple(tensor.stride())}, {tensor.storage_offset()}"
        yield f"TENSORS[{name!r}] = laid(VALUES[{name!r}], {lies})\n"
    names = {id(tensor): name for name, tensor in inputs.tensors.items()}
    yield "\nARGUMENTS = {\n"
    for own, value in bind(target, case, inputs.tensors).items():
        named = f"TENSORS[{names[id(value)]!r}]" if id(value) in names else repr(value)
        yield f"    {own!r}: {named},\n"
    used = {name: own for name, own in target.takes.items() if name in inputs.tensors}
    yield f"}}\n# What the target calls what is called so here.\nTAKES = {used!r}\n"
    yield f"OUTPUTS = {[name for name in target.outputs if name in inputs.tensors]!r}\n"
    yield f"REPEATS = {case.repeat}\nGRADIENTS = {GRADIENT_OF!r}\n"
    yield "# Of each result what it should be, and how far rounding may take it from that.\nEXPECTED = {\n"
    comparison = measured.comparison
    for name in [name for name in comparison.findings if name in comparison.bounds]:
        value = measured.raw.values[name]
        if value is measured.trace.values[name]:  # else it is in another convention
            bound = allowed(comparison, name, value.dtype)
            yield f"    {name!r}: (\n        {literal(comparison.expected[name])},\n        {literal(bound)},\n    ),\n"
    yield "}\n\n" + COMPARING + (BACKWARD if target.is_backward else FORWARD)


def literal(tensor: Tensor) -> str:
    """An expression that makes a contiguous tensor on the CPU, of the very bits."""
    tensor, kind = tensor.detach().cpu(), str(tensor.dtype)
    flat = tensor.flatten()
    if flat.numel() == 0 or bool((flat == flat[0]).all()):
        value = _nested(flat[0].item()) if flat.numel() else "0"
        return f"torch.full({list(tensor.shape)}, {value}, dtype={kind})"
    return f"torch.tensor({_nested(tensor.tolist())}, dtype={kind})"


def _nested(numbers: Any) -> str:
    if isinstance(numbers, list):
        return f"[{', '.join(map(_nested, numbers))}]"
    if not isinstance(numbers, float):
        return repr(numbers)
    # Nine digits tell every float32 from its neighbours.
    return f"{numbers:.9g}" if abs(numbers) < float("inf") else f'float("{numbers}")'


LAYING = f'''

def guarded(size, dtype):
    """[size] known numbers, so that a read outside a tensor gives the same in every run."""
    if size * dtype.itemsize >= {MAPPED}:
        return torch.zeros(size, dtype=dtype, device=DEVICE)
    ramp = torch.arange(size, device=DEVICE) * 7919 % 1021
    return ((ramp / 1021 * 4 + 4) * (1 - 2 * (ramp % 2))).to(dtype)


def laid(value, storage, size, strides, offset):
    """A tensor with these strides, in elements, inside a storage; those of one storage share it."""
    if storage not in STORAGES:
        STORAGES[storage] = guarded(size, value.dtype)
    tensor = STORAGES[storage].as_strided(value.shape, strides, offset)
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)
    tensor[once] = value[once].to(DEVICE)
    return tensor

'''

COMPARING = '''
def wrong(results):
    """What results, by name in lower case, differ from what they should be by more than rounding does, in sentences."""
    found = []
    for name, (expected, allowed) in EXPECTED.items():
        if (actual := results.get(name.lower())) is None:
            continue
        actual = actual.detach().cpu().double().reshape(expected.shape)
        bad = ~((actual - expected).abs() <= allowed) & (actual != expected)
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            words = f"{actual[at]:.6g} and should be {expected[at]:.6g} ({int(bad.sum())} wrong)"
            found.append(f"{name}{list(at)} is {words}")
    return found

'''

BACKWARD = '''
def run():
    """What the target gives, by name in lower case."""
    returned = target(**ARGUMENTS) or {}
    results = {name: ARGUMENTS[TAKES[name]] for name in OUTPUTS}
    results |= {str(name).lower(): value for name, value in returned.items() if value is not None}
    return {"o" if name == "out" else name: value for name, value in results.items()}

'''

FORWARD = '''
def run():
    """What the target and autograd give, by name in lower case."""
    names = [name for name in GRADIENTS if TAKES.get(name) in ARGUMENTS and TENSORS[name].is_floating_point()]
    leaves = {TAKES[name]: TENSORS[name].detach().requires_grad_() for name in names}
    returned = target(**ARGUMENTS | leaves)
    results = dict(returned) if isinstance(returned, dict) else {}
    results = {"o" if str(name).lower() == "out" else str(name).lower(): value for name, value in results.items()}
    if not results:
        results["o"] = returned[0] if isinstance(returned, (tuple, list)) else returned
    found = torch.autograd.grad(results["o"], list(leaves.values()), TENSORS["do"], allow_unused=True)
    return results | {GRADIENTS[name].lower(): gradient for name, gradient in zip(names, found) if gradient is not None}

'''

END = """
if __name__ == "__main__":
    for _ in range(REPEATS):
        said = wrong(run())
        assert not said, "; ".join(said)
    print("right: the fault is gone")
"""

_TEST = '''"""{first}

The smallest case that fails so. It passes once the fault is gone.
"""

{imports}from gradprobe.testing import assert_backward_matches

{here}
def test_{name}_shrunk():
    assert_backward_matches(
        {subject},
{options}    )
'''


def pytest_source(request: CheckRequest, first: str, file: Path) -> str:
    """The source of a test of what was asked.

    Args:
        first: what is wrong, in one line.
        file: where the test is to lie; it finds the target's file from there.
    """
    place, _, function = request.target.rpartition(":")
    subject, imports, here = repr(request.target), "", ""
    if place.endswith(".py") and request.target not in BUILTINS:
        path = os.path.relpath(Path(place).resolve(), file.resolve().parent)
        subject = f"str((HERE / {path!r}).resolve()) + {':' + function!r}"
        imports = "from pathlib import Path\n\n"
        here = "HERE = Path(__file__).resolve().parent\n\n"
    words = {"family": request.family, "reference": request.reference} | dict(request.options)
    options = "".join(_options(words))
    name = re.sub(r"\W+", "_", function or request.target).lower()
    title = visible(first).replace("\\", r"\\").replace('"""', "'''")
    return _TEST.format(
        first=title, imports=imports, here=here, name=name, subject=subject, options=options
    )


def _options(words: Mapping[str, Any]) -> Iterator[str]:
    """Options as Python values: numbers with commas as a tuple."""
    numbers = {option.name for option in OPTIONS if option.numbers}
    for name, word in words.items():
        if word is not None:
            value = tuple(map(_number, word.split(","))) if name in numbers else word
            yield f"        {name}={value!r},\n"


def _number(word: str) -> float:
    return float(word) if re.search(r"[.en]", word) else int(word)
