"""What is found of a head is the same wherever its elements are."""

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.numerics.compare import attention_of, compare
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.large_run import LargeRun
from gradprobe.numerics.sieve import LargeRuns
from gradprobe.numerics.tally import Grid
from gradprobe.reference import Tile
from gradprobe.runtime.run import Trace
from tests.emulated import Arithmetic, case_of, ran

pytestmark = pytest.mark.gpu


def test_a_map_made_of_tensors_on_a_gpu_is_that_of_the_same_on_the_cpu():
    case = case_of("softmax", batch=1, heads=3, seqlen=333, head_dim=64)
    drawn = torch.Generator().manual_seed(0)
    ratio = (torch.randn(3, 333, 333, generator=drawn, dtype=torch.double) * 6).exp2()
    valid = torch.ones(3, 333, 333).tril().bool()
    maps = []
    for device in ("cpu", "cuda"):
        grid = Grid(case, "dS", (1, 3, 333, 333))
        tile = Tile(0, slice(0, 3), slice(0, 333))
        parts = (ratio.masked_fill(~valid, 0.0), valid.double(), valid)
        grid.add(tile, 0, *(part.to(device) for part in parts))
        maps.append(grid.signs())
    assert maps[0].equal(maps[1])


def test_what_passes_the_sieve_there_has_ratios_that_are_not_too_small():
    sizes = {"batch": 2, "heads": 2, "seqlen": 300, "head_dim": 64}
    case = case_of("softmax", **sizes, dtype="bfloat16", causal=True)
    values = draw(case)
    came = ran(case, Arithmetic(tensor_core=True, delta_from_o=True), values=values)
    there = {name: value.to("cuda") for name, value in values.items()}
    trace = Trace({name: value.to("cuda") for name, value in came.values.items()}, came.sources)
    run_there = LargeRun(case, there, trace, precision_of("bfloat16", "ieee"))
    passed = LargeRuns().compared(run_there, lambda: pytest.fail("all of it was compared"))
    whole = compare(case, attention_of(case, there), trace, precision_of("bfloat16", "ieee"))
    for name, finding in passed.findings.items():
        assert bool((finding.ratio >= whole.findings[name].ratio * (1 - 1e-9)).all()), name
