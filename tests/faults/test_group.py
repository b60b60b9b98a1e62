"""ACC: sums over the heads of a group."""

import torch

from tests.faults.plain import Planted, both_ways, named, told
from tests.sampling import sampled


@both_ways
@sampled("member", [0, 1], push=1)
def test_a_member_that_alone_is_added_is_named(member, exposed):
    def alone(kernel, name, tensor):  # noqa: ARG001
        if name not in ("dK", "dV"):
            return tensor
        return tensor * (torch.arange(4) % 2 == member)[:, None, None]

    assert (
        named(told(Planted(make=alone), exposed=exposed, heads=4, kv_heads=2))
        == "accumulation/dK"
    )
