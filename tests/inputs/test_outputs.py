"""A target that is given where to write its gradients: what it leaves there counts unless it returns another."""

import pytest
import torch

from gradprobe.inputs.draw import draw, outputs_of
from gradprobe.model.assignment import OUTPUTS
from gradprobe.model.failures import TargetFailure
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.probe import probe

pytestmark = pytest.mark.usefixtures("without_causes")

SMALL = {"batch": 2, "heads": 2, "seqlen": 20, "head_dim": 8}
GIVEN = []
"""What the targets below were given to write into, one dict a call."""


def gradients(q, k, v, do, scale):
    p = (scale * q @ k.mT).softmax(-1)
    ds = p * (do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True))
    return {"dQ": scale * ds @ k, "dK": scale * ds.mT @ q, "dV": p.mT @ do}


def note(**given):
    GIVEN.append({name: (tensor, tensor.isnan().all().item()) for name, tensor in given.items()})


def written(dq, dk, dv, results):
    note(dq=dq, dk=dk, dv=dv)
    for tensor, name in ((dq, "dQ"), (dk, "dK"), (dv, "dV")):
        tensor.copy_(results[name])


def writes(q, k, v, do, dq, dk, dv, *, scale):
    written(dq, dk, dv, gradients(q, k, v, do, scale))


def writes_and_returns_dv(q, k, v, do, dq, dk, dv, *, scale):
    results = gradients(q, k, v, do, scale)
    written(dq, dk, dv.clone(), results)
    dv.zero_()  # what is returned counts before what was written
    return {"dQ": None, "dV": results["dV"]}


def ignores(q, k, v, do, dq=None, dk=None, dv=None, *, scale):
    note(dq=dq, dk=dk, dv=dv)
    return gradients(q, k, v, do, scale)


def returns_a_tensor(q, k, v, do, dk, dq):
    return dq


@pytest.fixture(autouse=True)
def given():
    GIVEN.clear()


def probed(function, case=None, **options):
    case = case or softmax_case(**SMALL | options)
    name = function if isinstance(function, str) else f"{__name__}:{function.__name__}"
    return probe(case, find_target(name))


def verdicts(report):
    return {run.layout: run.verdict for run in report.runs}


def test_outputs_have_the_shapes_of_the_gradients_and_the_dtypes_of_the_inputs():
    case = softmax_case(
        heads=4, kv_heads=2, seqlen=9, seqlen_k=11, head_dim=8, head_dim_v=5, dtype="float16", bias=True,
        bias_axes="hn", sinks=True,
    )  # fmt: skip
    outputs = outputs_of(case, OUTPUTS, draw(case))
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in outputs.items()} == {
        "dq": ((2, 4, 9, 8), torch.float16), "dk": ((2, 2, 11, 8), torch.float16), "dv": ((2, 2, 11, 5), torch.float16),
        "dbias": ((1, 4, 1, 11), torch.float16), "dsink": ((4,), torch.float32),
    }  # fmt: skip
    assert all(tensor.isnan().all() for tensor in outputs.values())


def test_what_is_written_or_returned_is_compared_in_every_layout():
    report = probed(writes_and_returns_dv)
    assert verdicts(report) == dict.fromkeys(("contiguous", "distinct", "do=expanded"), "match")
    assert list(report.runs[0].measured.comparison.findings) == ["dQ", "dK", "dV"]


def test_every_run_is_given_tensors_of_its_own_that_hold_nan():
    probed(writes, repeat=2, recover=False)
    assert len(GIVEN) == 6  # two runs of each layout
    assert all(was_nan for call in GIVEN for _, was_nan in call.values())
    assert len({tensor.data_ptr() for call in GIVEN for tensor, _ in call.values()}) == 18
    strides = [stride for tensor, _ in GIVEN[2].values() for stride in tensor.stride()]
    assert len(set(strides)) == 12


def test_a_target_that_returns_no_dict_is_told_what_to_return():
    words = "must return a dict of named intermediates, got Tensor"
    with pytest.raises(TargetFailure, match=words) as failure:
        probed(returns_a_tensor)
    assert failure.value.way_out.endswith("; or None, after writing into dq, dk")


def test_a_reference_may_write_its_gradients_too_in_float64():
    case = softmax_case(**SMALL, recover=False)
    own, other = (find_target(f"{__name__}:{name}") for name in ("ignores", "writes"))
    report = probe(case, own, reference=other)
    assert set(verdicts(report).values()) == {"match"}
    dtypes = {tensor.dtype for call in GIVEN for tensor, _ in call.values()}
    assert dtypes == {torch.float32, torch.float64}
