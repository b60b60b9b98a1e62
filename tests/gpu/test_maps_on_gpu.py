"""The map of a head is the same wherever its elements are: its letters are made on the CPU."""

import pytest
import torch

from gradprobe.numerics.grid import Grid
from gradprobe.reference import Tile
from tests.emulated import case_of

pytestmark = pytest.mark.gpu


def test_a_map_made_of_tensors_on_a_gpu_is_that_of_the_same_on_the_cpu():
    case, draw = case_of("softmax", batch=1, heads=3, seqlen=333, head_dim=64), torch.Generator().manual_seed(0)
    ratio = (torch.randn(3, 333, 333, generator=draw, dtype=torch.double) * 6).exp2()
    valid = torch.ones(3, 333, 333).tril().bool()
    maps = []
    for device in ("cpu", "cuda"):
        grid = Grid(case, "dS", (1, 3, 333, 333))
        tile = Tile(0, slice(0, 3), slice(0, 333))
        grid.add(tile, 0, *(part.to(device) for part in (ratio.masked_fill(~valid, 0.0), valid.double(), valid)))
        maps.append(grid.signs())
    assert maps[0].equal(maps[1])
