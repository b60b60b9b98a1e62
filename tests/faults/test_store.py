"""S1: a gradient that is handed in is stored with another tensor's strides."""

from tests.emulated import case_of, target_of
from tests.faults.plain import EVERYTHING, Planted, backward, both_ways, named
from tests.probe import probe
from tests.sampling import sampled

SMALL = {
    "batch": 2,
    "heads": 2,
    "seqlen": 40,
    "head_dim": 8,
    "head_dim_v": 8,
    "runs": ((("all", "distinct"),),),
}


def storing(exposed, axes=()):
    """A target that is given dq, dk and dv, and stores dq with do's strides along some axes."""

    def softmax(q, k, v, do, dq, dk, dv, *, causal, scale):
        tensors = {"q": q, "k": k, "v": v, "do": do}
        found = backward(Planted(), "softmax", tensors, {"causal": causal, "scale": scale})
        strides = [
            do.stride(axis) if axis in axes else own for axis, own in enumerate(dq.stride())
        ]
        for place in ((b, h) for b in range(q.shape[0]) for h in range(q.shape[1])):
            first = dq.storage_offset() + place[0] * strides[0] + place[1] * strides[1]
            dq.as_strided(dq.shape[2:], strides[2:], first).copy_(found["dQ"][place])
        dk.copy_(found["dK"])
        dv.copy_(found["dV"])
        found |= {"dQ": dq, "dK": dk, "dV": dv}
        return {name: value for name, value in found.items() if name in exposed}

    return target_of(softmax)


@both_ways
@sampled("axes, fault", [((1,), "store/dq-head"), ((2,), "store/dq-row")], push=1)
def test_a_gradient_that_is_stored_with_another_stride_is_named(axes, fault, exposed):
    assert named(probe(case_of("softmax", **SMALL), storing(exposed, axes))) == fault


def test_a_gradient_that_is_stored_where_it_belongs_has_no_diagnosis():
    assert probe(case_of("softmax", **SMALL), storing(EVERYTHING)).diagnoses == ()
