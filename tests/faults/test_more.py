"""Several faults at once, a gradient that is handed in, a hypothesis that is added, and keys that a forward counts."""

import pytest

from gradprobe.faults import fault_rows
from tests.cases import softmax_case
from tests.emulated import case_of, target_of
from tests.faults.plain import (
    EVERYTHING,
    GRADIENTS,
    Planted,
    backward,
    making,
    named,
    of_head_0,
    told,
)
from tests.planted import planting
from tests.probe import probe
from tests.sampling import sampled


def misread(kernel, name, tensor):
    return of_head_0(tensor) if name == "do" and kernel in ("preprocess", "dq") else tensor


@sampled("exposed", [EVERYTHING, GRADIENTS], [EVERYTHING], ids=lambda of: f"{len(of)} results")
def test_a_misread_do_and_a_doubled_dv_are_told_apart(exposed):
    planted = Planted(
        misread, lambda kernel, name, tensor: tensor * 2 if name == "dV" else tensor
    )
    first, second, *_ = told(planted, exposed=exposed, batch=1, causal=True).diagnoses
    assert {first.fault, second.fault} == {"index/do-head", "factor/dV"}
    assert (first.explained, second.explained, second.also) == (1.0, 1.0, True)


def storing(axis):
    """A target that is given dq, dk and dv, and stores dq with do's stride along an axis."""

    def softmax(q, k, v, do, dq, dk, dv, *, causal, scale):
        tensors = {"q": q, "k": k, "v": v, "do": do}
        found = backward(Planted(), "softmax", tensors, {"causal": causal, "scale": scale})
        strides = [do.stride(at) if at == axis else own for at, own in enumerate(dq.stride())]
        for place in ((b, h) for b in range(q.shape[0]) for h in range(q.shape[1])):
            first = dq.storage_offset() + place[0] * strides[0] + place[1] * strides[1]
            dq.as_strided(dq.shape[2:], strides[2:], first).copy_(found["dQ"][place])
        dk.copy_(found["dK"])
        dv.copy_(found["dV"])
        return found | {"dQ": dq, "dK": dk, "dV": dv}

    return target_of(softmax)


@pytest.mark.parametrize(
    ("axis", "fault"), [(1, "store/dq-head"), (2, "store/dq-row"), (None, "")]
)
def test_a_gradient_that_is_stored_with_another_stride_is_named(axis, fault):
    sizes = {"batch": 2, "heads": 2, "seqlen": 40, "head_dim": 8, "head_dim_v": 8}
    report = probe(case_of("softmax", **sizes, runs=((("all", "distinct"),),)), storing(axis))
    assert named(report) == fault
    assert bool(report.diagnoses) == bool(fault)


def test_keys_that_count_in_a_triton_forward_are_told_with_its_line(tmp_path):
    seen = "visible(m, n, distance, live_m, live_n, left, right)"
    edit = planting.Edit("flash_forward_kernel", seen, seen.replace("live_n", "live_n + BLOCK_N"))
    cause = planting.Planted("keys_count", "flash", (edit,)).probe(tmp_path).diagnoses[0]
    assert cause.fault == "tail/scores"
    assert {where.kernel for where in cause.where} == {"flash_forward_kernel"}


def test_a_row_with_a_formula_is_all_that_a_hypothesis_takes(monkeypatch):
    row = "if True\nwrong delta dS\ndelta/squared | delta is squared\n  delta = delta**2\n"
    planted = making("delta", lambda t: t**2)
    assert named(told(planted, batch=1)) == ""
    monkeypatch.setattr(fault_rows, "FORMULAS", fault_rows.FORMULAS + row)
    cause = told(planted, batch=1).diagnoses[0]
    said = ("delta/squared", "delta is squared", True)
    assert (cause.fault, cause.summary, cause.is_named) == said
