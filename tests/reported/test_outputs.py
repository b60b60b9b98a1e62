"""A gradient that is stored by another's strides shows by default, though a wrapper makes both by `empty_like`."""

import pytest
import torch

from gradprobe.inputs.tensor_layouts import place
from tests.reported.conftest import SMALL

_CASE = SMALL.replace("--batch 1", "--batch 2")


def test_right_strides_of_outputs_match(check):
    ran, report = check(f"outputs.py:right {_CASE} --no-recover")
    assert ran.code == 0
    layouts = [run["layout"] for run in report["runs"]]
    assert layouts == ["contiguous", "distinct", "distinct-unit", "do=expanded"]


def test_a_gradient_by_the_others_strides_is_told(check):
    ran, report = check(f"outputs.py:dv_by_dk {_CASE} --fix-budget 0")
    assert ran.code == 1
    verdicts = {run["layout"]: run["verdict"] for run in report["runs"]}
    assert (verdicts["contiguous"], verdicts["distinct-unit"]) == ("match", "mismatch")
    assert report["first_mismatch"]["intermediate"] == "dV"
    assert report["diagnoses"][0]["fault"] == "store/dV"
    assert all("tl.store(dv_ptr" in where["code"] for where in report["diagnoses"][0]["where"])


def test_a_wrapper_that_views_what_it_made_is_tried_in_the_order_of_its_axes(check):
    ran, report = check(f"outputs.py:viewed {_CASE} --no-recover")
    assert ran.code == 0
    tried = {"distinct": "skipped", "distinct-unit": "skipped", "distinct-ordered": "match"}
    verdicts = {run["layout"]: run["verdict"] for run in report["runs"]}
    assert verdicts == {"contiguous": "match", **tried, "do=expanded": "match"}


@pytest.mark.parametrize("layout", ["distinct", "distinct-unit"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 1, 5, 4), (1, 3, 5, 4)])
def test_what_is_made_like_k_and_v_does_not_lie_alike(layout, shape):
    values = {name: torch.ones(shape) for name in ("q", "k", "v", "do")}
    tensors = place(values, (("all", layout),)).tensors
    alike = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    long = [axis for axis, size in enumerate(shape) if size > 1]
    of_k, of_v = ([alike[name].stride(axis) for axis in long] for name in ("k", "v"))
    assert of_k != of_v
    assert all(tensor.stride(-1) == 1 for tensor in alike.values())
