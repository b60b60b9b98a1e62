"""S3: a kernel reads a tensor of another head, batch or row."""

import pytest
import torch

from tests.faults.plain import (
    BACKWARD,
    GRADIENTS,
    KERNELS,
    both_ways,
    named,
    of_batch_0,
    of_head_0,
    reading,
    told,
)

# Some of each kind are tried on every push by the score.
pytestmark = pytest.mark.nightly

GROUPED = {"heads": 4, "kv_heads": 2}


def of_row_0(tensor):
    return tensor[:, :, :1].expand_as(tensor)


PLANTED = {
    "index/do-head": ("do", of_head_0, BACKWARD),
    "index/lse-head": ("lse", of_head_0, ("dkdv",)),
    "index/lse-batch": ("lse", of_batch_0, KERNELS),
    "index/delta-head": ("delta", of_head_0, ("dkdv",)),
    "index/delta-batch": ("delta", of_batch_0, KERNELS),
    "index/delta-row": ("delta", of_row_0, KERNELS),
    "index/v-batch": ("v", of_batch_0, ("dq",)),
}


@both_ways
@pytest.mark.parametrize("fault", PLANTED)
def test_a_term_of_an_index_that_is_missing_is_named_with_the_tensor_and_the_axis(fault, exposed):
    name, change, kernels = PLANTED[fault]
    assert named(told(reading(name, change, kernels), exposed=exposed, causal=True)) == fault


@pytest.mark.parametrize("fault", PLANTED)
def test_it_is_named_in_the_lazy_family_too(fault):
    assert named(told(reading(*PLANTED[fault]), "lazy")) == fault


@pytest.mark.parametrize(
    ("fault", "name", "change", "options"),
    [
        ("index/q-next-head", "q", lambda t: t.roll(-1, 1), {"heads": 3}),
        ("index/do-kv-head", "do", lambda t: t[:, torch.tensor([0, 0, 1, 1])], GROUPED),
        ("index/lse-kv-head", "lse", lambda t: t[:, torch.tensor([0, 0, 1, 1])], GROUPED),
        ("index/k-head", "k", of_head_0, GROUPED),
        ("index/mask-head", "mask", of_head_0, {"mask": "random"}),
        ("index/bias-head", "bias", of_head_0, {"bias": True}),
        ("index/alibi-head", "alibi", lambda t: t[:1].expand_as(t), {"alibi": True}),
        ("index/keep-batch", "keep", of_batch_0, {"dropout": 0.3}),
    ],
)
def test_another_head_or_batch_is_named_in_a_black_box_whatever_the_tensor(
    fault, name, change, options
):
    assert named(told(reading(name, change, BACKWARD), exposed=GRADIENTS, **options)) == fault


@both_ways
def test_a_bias_that_is_left_out_is_not_called_a_bias_of_one_key(exposed):
    assert (
        named(told(reading("bias", lambda t: t * 0), exposed=exposed, bias=True)) == "mask/bias"
    )
