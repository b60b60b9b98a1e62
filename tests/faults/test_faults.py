"""Each kind of fault in kernels of plain torch is named first, where everything is exposed or the gradients alone.

One record a hypothesis, or two where it has a case of its own; the same in Triton and CUDA stand in tests/planted.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch

from gradprobe.faults import fault_rows
from tests.emulated import case_of, target_of
from tests.faults.plain import (
    BACKWARD,
    EVERYTHING,
    GRADIENTS,
    KERNELS,
    Planted,
    backward,
    keys_of,
    making,
    named,
    of_batch_0,
    of_head_0,
    reading,
    remembering,
    rows_of,
    told,
    with_strides_of,
)
from tests.planted import planting
from tests.probe import probe
from tests.sampling import sampled

LAZY, BOX, GROUPED = {"family": "lazy"}, {"exposed": GRADIENTS}, {"heads": 4, "kv_heads": 2}
CAUSAL, WINDOW, DEAD = {"causal": True}, {"window": (7, 3)}, {"batch": 1, "mask": "dead-rows"}
DISTINCT = {"runs": ((("all", "distinct"),),), "causal": True}
SCALE, TAU = 8**-0.5, torch.tensor([-0.5, 0.5])[:, None, None]


def seen(change, kernels=BACKWARD):
    return making("valid", change, kernels)


def times(name, factor, kernels=KERNELS):
    return making(name, lambda t: t * factor, kernels)


def as_if_contiguous(tensor):
    strides = torch.empty(tensor.shape).stride()
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


def own_row(matrix, rows, size):
    """[..., N, D]: each sum of a tile of the first rows of a matrix [..., M, N] times one row of the tile alone."""
    found = torch.zeros(*matrix.shape[:-2], matrix.shape[-1], rows.shape[-1], dtype=rows.dtype)
    for first in range(0, matrix.shape[-2], size):
        for n in range(matrix.shape[-1]):
            if first + n % size < rows.shape[-2]:
                weight = matrix[..., first : first + size, n].sum(-1, keepdim=True)
                found[..., n, :] += weight * rows[..., first + n % size, :]
    return found


def member_alone(kernel, name, tensor):
    return tensor * (torch.arange(4) % 2)[:, None, None] if name in ("dK", "dV") else tensor


def uniform(weights):
    return weights.where(weights.sum(-1, keepdim=True) > 0, weights.new_full((), 1 / 40))


def other_tau(position):
    def z_of(z):
        return z - TAU / (rows_of(z) + 1) + TAU / position(rows_of(z), keys_of(z))

    return making("Z", z_of)


def of_rows(what):
    return remembering("dTau", lambda of, t: (what(of) / (rows_of(of("dP")) + 1)).sum((0, 2, 3)))


def swapped(**places):
    return Planted(
        call=lambda found: found | {to: found[of].clone() for to, of in places.items()}
    )


# What is to be named, what is planted, and where; tests/planted has the same of other kinds.
EVERY_PUSH: list[tuple[str, Planted, dict[str, Any]]] = [
    ("stride/do-head", with_strides_of("do", "q", (1,), BACKWARD), DISTINCT | BOX),
    ("index/q-next-head", reading("q", lambda t: t.roll(-1, 1), BACKWARD), {"heads": 3}),
    ("mask/diagonal", seen(lambda t: t & (keys_of(t) < rows_of(t))), CAUSAL),
    ("dead/uniform", making("P", uniform), DEAD),
    ("tile/dQ-last-keys", seen(lambda t: t & (keys_of(t) < 32), ("dq",)), {}),
    ("accumulation/dQ", seen(lambda t: t & (keys_of(t) >= 32), ("dq",)), {}),
    ("factor/dQ", times("dQ", 8**0.5), BOX), ("factor/dTau", times("dTau", 2), LAZY | {"batch": 1}),
    ("operand/dQ", remembering("dQ", lambda of, t: of("dS") @ of("v") * SCALE), {}),
    ("transposed/dK", making("dS", lambda t: t.mT, ("dkdv",)), {}),
    ("precision/dS", making("dS", lambda t: t.half().float()), CAUSAL),
    ("dropout/dv", remembering("dV", lambda of, t: of("P").mT @ of("do")), {"dropout": 0.3}),
    ("softcap/derivative", making("slope", lambda t: t**2, ("dq",)), {"softcap": 1.0}),
]  # fmt: skip
NIGHTLY: list[tuple[str, Planted, dict[str, Any]]] = [
    ("mask/align", seen(lambda t: (keys_of(t) <= rows_of(t)).expand_as(t)), CAUSAL | {"seqlen_q": 24, "seqlen_k": 40}),
    ("accumulation/dK", Planted(make=member_alone), GROUPED), ("zero/dQ", times("dQ", 0), BOX),
    ("delta/dropped", reading("delta", lambda t: t * 0, ("dkdv",)), LAZY),
    ("swap/dQ-dK", swapped(dQ="dK", dK="dQ"), {}), ("dropout/scale", times("dV", 0.7), {"dropout": 0.3}),
    ("tau/position", other_tau(lambda i, j: i + 2.0), LAZY | {"batch": 1}),
    ("stride/do-head", with_strides_of("do", "q", (1,), BACKWARD), {"batch": 1, "runs": ((("do", "huge"),),)}),
    ("mask/window-right", seen(lambda t: t | (keys_of(t) == rows_of(t) + 4)), WINDOW),
    ("mask/mask", seen(lambda t: t | True), {"mask": "random"}),
    ("mask/tau", reading("tau", lambda t: t * 0), LAZY | {"batch": 1}),
    ("operand/dQ-row", remembering("dQ", lambda of, t: own_row(of("dS").mT, of("k"), 16) * SCALE), {}),
    ("precision/do", reading("do", lambda t: t.bfloat16()), CAUSAL),
    ("factor/P", times("P", 2), {}), ("factor/dP", times("dP", 2), LAZY),
    ("stride/v-batch", with_strides_of("v", "k", (0,), BACKWARD), DISTINCT),
    ("stride/k-dim", with_strides_of("k", "q", (3,), ("dq",)), DISTINCT),
    ("layout/do", reading("do", as_if_contiguous, BACKWARD), {"runs": ((("all", "blhd"),),)}),
    ("index/lse-batch", reading("lse", of_batch_0), CAUSAL), ("index/v-batch", reading("v", of_batch_0, ("dq",)), LAZY),
    ("index/do-kv-head", reading("do", lambda t: t[:, torch.tensor([0, 0, 1, 1])], BACKWARD), GROUPED | BOX),
    ("index/alibi-head", reading("alibi", lambda t: t[:1].expand_as(t), BACKWARD), {"alibi": True} | BOX),
    ("index/keep-batch", reading("keep", of_batch_0, BACKWARD), {"dropout": 0.3} | BOX),
    ("tail/scores", making("LSE", lambda t: t.logaddexp(t.new_tensor(24.0).log()), ("forward",)), {}),
    ("twice/dV", swapped(dK="dV"), {}),  # no swap: the other came right
]  # fmt: skip


# What the gradients alone do not show.
UNSEEN = ("precision/dS", "precision/do", "accumulation/dK")


@pytest.mark.parametrize(
    ("fault", "planted", "options"),
    [pytest.param(*one, id=one[0]) for one in EVERY_PUSH]
    + [pytest.param(*one, id=one[0], marks=pytest.mark.nightly) for one in NIGHTLY]
    + [
        pytest.param(
            *one, options | BOX, id=f"{one[0]} of a black box", marks=pytest.mark.nightly
        )
        for *one, options in (*EVERY_PUSH, *NIGHTLY)
        if one[0] not in UNSEEN and "exposed" not in options
    ],
)
def test_a_fault_is_named(fault, planted, options):
    assert named(told(planted, **options)) == fault


SAYS = [
    ("summary", "dO is read with q's head stride", with_strides_of("do", "q", (1,), BACKWARD), DISTINCT),
    ("summary", "dQ is off by the factor 1/scale throughout", times("dQ", 8**0.5), {}),
    ("fix", "multiply dQ by scale", times("dQ", 8**0.5), {}), ("fix", "multiply dV by 1/2", times("dV", 2.0), {}),
    ("fix", "multiply dV by log2e", times("dV", math.log(2)), {}), ("fix", "", times("dV", 1.2345), {}),
    ("summary", "the scores and bias are off by the factor ln2", times("S", math.log(2)), LAZY),
    ("fix", "take exp of scores in natural units, or exp2 of scores times log2 e", times("S", math.log(2)), LAZY),
    ("summary", "dK leaves out the rows beyond the last whole tile of 32",
     seen(lambda t: t & (rows_of(t) < 32), ("dkdv",)), {}),
    # 1 - tanh(2x)^2 from 1 - tanh(x)^2
    ("summary", "the softcap's derivative is 1 - tanh(S)^2, of S not divided by the softcap",
     making("slope", lambda t: 1 - 4 * (1 - t) / (2 - t) ** 2, ("dq",)), {"softcap": 2.0} | BOX),
    ("summary", "dTau sums dP before it is masked", of_rows(lambda of: of("do") @ of("v").mT),
     LAZY | BOX | {"batch": 1}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "words", "planted", "options"),
    [
        pytest.param(*one, id=one[1][:60], marks=[pytest.mark.nightly] if at % 3 else [])
        for at, one in enumerate(SAYS)
    ],
)
def test_a_cause_says_what_is_off_and_the_edit_that_undoes_it(what, words, planted, options):
    report = told(planted, **options)
    assert named(report)
    assert getattr(report.diagnoses[0], what)[: len(words) or None] == words


def noise(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def some(shape, share):
    return torch.rand(shape, generator=torch.Generator().manual_seed(6)) < share


def three_of(lse):
    return lse + 3 * noise(lse.shape) * (torch.arange(lse.numel()) % 50 == 7).view(lse.shape)


def nan_in(t):
    return t + torch.where(some(t.shape, 0.02), torch.nan, 0.0)


# No hypothesis explains what no hypothesis made; of the last, two numbers near 0 are no proof of the many faults that
# would leave 0 there: a row of dS sums to 0, and so does a dTau that is made of dS.
NOISES = {
    "a tenth of the elements moved": (making("dS", lambda t: t + some(t.shape, 0.1) * noise(t.shape)), CAUSAL),
    "a third of the signs turned": (making("dS", lambda t: torch.where(some(t.shape, 0.3), -t, t)), CAUSAL),
    "a third of the elements 0": (making("dS", lambda t: torch.where(some(t.shape, 0.3), t * 0, t)), CAUSAL),
    "numbers of another seed": (making("dS", lambda t: noise(t.shape)), CAUSAL | BOX),
    "three elements of lse, and all that follows": (making("LSE", three_of), {}),
    "NaN throughout": (making("dP", nan_in, ("dkdv",)), {"exposed": ("dK",), "causal": True, "mask": "dead-rows"}),
    "dTau of dS": (of_rows(lambda of: of("dS")), LAZY | BOX),
}  # fmt: skip


@sampled("name", NOISES, ["a tenth of the elements moved", "NaN throughout"])
def test_noise_is_no_fault_of_any_kind(name):
    planted, options = NOISES[name]
    report = told(planted, **options)
    assert (report.verdict, named(report)) == ("mismatch", "")
    assert report.known or name == "dTau of dS"


RIGHT: dict[str, dict[str, Any]] = {
    "plain": {}, "causal with fewer rows than keys": {"causal": True, "seqlen_q": 24, "seqlen_k": 40},
    "grouped heads in half precision": {"heads": 4, "kv_heads": 2, "dtype": "float16"},
    "every option": {
        "bias": True, "alibi": True, "mask": "random", "sinks": True, "dropout": 0.2, "softcap": 3.0, "causal": True,
    },
    "padded": {"seqlens": (40, 13)}, "packed": {"cu_seqlens": (0, 13, 13, 40), "causal": True},
    "lazy": LAZY, "lazy in bfloat16": LAZY | {"dtype": "bfloat16"},
}  # fmt: skip


# In turns on every push.
IN_TURNS = [(name, ("exposed", "black box")[at % 2]) for at, name in enumerate(RIGHT)]


@sampled("name, seen", product(RIGHT, ("exposed", "black box")), push=IN_TURNS)
def test_right_results_have_no_diagnosis_and_no_sentence(name, seen):
    exposed = EVERYTHING if seen == "exposed" else GRADIENTS
    report = told(Planted(), exposed=exposed, **RIGHT[name])
    assert [run.verdict for run in report.runs] == ["match"]
    assert (report.diagnoses, report.known) == ((), ())


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
