"""ACC: sums over the heads of a group."""

import torch

from tests.faults.plain import Planted, seen_both_ways
from tests.sampling import sampled


@sampled("member", [0, 1], push=1)
def test_a_member_that_alone_is_added_is_named(member):
    def alone(kernel, name, tensor):  # noqa: ARG001
        if name not in ("dK", "dV"):
            return tensor
        return tensor * (torch.arange(4) % 2 == member)[:, None, None]

    found = seen_both_ways(lambda: Planted(make=alone), heads=4, kv_heads=2)
    assert found == ("accumulation/dK", "accumulation/dK")
