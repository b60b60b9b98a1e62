"""torch.autograd.gradcheck of an independent forward whose backward is `manual_attention_backward`."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gradprobe.reference import manual_attention_backward
from tests.reference.independent import Inputs, draw, forward, lazy_inputs, softmax_inputs
from tests.sampling import sampled

# gradcheck takes (f(x + e) - f(x - e)) / 2e. With e = 1e-6 that is off by e**2 / 6 of a third derivative (a
# factor of at most 2 * scale = 3 each time for the softmax, and 8 for softcap: below 1000, so 2e-10) and by
# the rounding of O over e: 250 roundings of 3 make 250 * 3 * 2**-53 / 1e-6 = 8e-8. Their sum, rounded up.
STEP = 1e-6
DIFFERENCE_ERROR = 1e-7

# A step moves Z by at most STEP times a derivative below 10: what lies further than this from 0 stays on its
# side.
KINK_DISTANCE = 10 * STEP


class IndependentAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor,
        tau: Tensor | None,
        sinks: Tensor | None,
        options: Inputs,
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, bias, tau, sinks)
        ctx.options = options
        return forward(q, k, v, bias=bias, tau=tau, sinks=sinks, **options)["O"]

    @staticmethod
    def backward(ctx, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, tau, sinks = ctx.saved_tensors
        found = manual_attention_backward(
            q, k, v, do, bias=bias, tau=tau, sinks=sinks, matrices=False, **ctx.options
        )
        return (
            found["dQ"],
            found["dK"],
            found["dV"],
            found["dBias"],
            found.get("dTau"),
            found.get("dSink"),
            None,
        )


def passes(
    inputs: Inputs, bias: Tensor, tau: Tensor | None = None, sinks: Tensor | None = None, **options
) -> bool:
    tensors = [inputs["q"], inputs["k"], inputs["v"], bias, tau, sinks]
    leaves: list[Any] = [None if t is None else t.clone().requires_grad_() for t in tensors]
    leaves.append(options)
    return torch.autograd.gradcheck(
        IndependentAttention.apply, leaves, eps=STEP, atol=DIFFERENCE_ERROR, rtol=0
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.nightly),
        pytest.param({"causal": True}, marks=pytest.mark.nightly),
        {"causal": True, "window": (2, -1), "softcap": 0.5, "scale": 1.5},
        {"causal": True, "seqlens": torch.tensor([4, 0])},
    ],
    ids=["plain", "causal", "window 2, softcap 0.5, scale 1.5", "lengths 4 and 0"],
)
def test_softmax_of_6_rows_with_2_query_heads_on_1_key_head(options):
    assert passes(softmax_inputs(6, 6, heads=2, kv_heads=1), draw(2, 1, 6, seed=9), **options)


@sampled("m, n", [(4, 6), (6, 4)], push=[(6, 4)])
def test_causal_softmax_of_4_rows_on_6_keys_and_of_6_rows_on_4_keys(m, n):
    assert passes(softmax_inputs(m, n, dv=2), draw(m, n, seed=9), causal=True)


@sampled("m, n", [(4, 6), (6, 4)], push=[(4, 6)])
def test_softmax_with_sinks_alibi_a_mask_and_dropout_aligned_to_the_top_left(m, n):
    mask, keep = (draw(2, 2, m, n, seed=seed) > -0.4 for seed in (5, 6))
    options = {
        "mask": mask,
        "keep": keep,
        "dropout": 0.4,
        "alibi": draw(2, seed=7).abs(),
        "align": "top-left",
    }
    inputs = softmax_inputs(m, n, heads=2, kv_heads=1)
    assert passes(inputs, draw(2, 1, n, seed=9), sinks=draw(2, seed=8), causal=True, **options)


def test_packed_softmax_of_2_0_and_4_rows_on_3_1_and_1_keys_with_sinks():
    inputs = {name: t[:1] for name, t in softmax_inputs(6, 5).items()}
    cu_seqlens = {
        "cu_seqlens_q": torch.tensor([0, 2, 2, 6]),
        "cu_seqlens_k": torch.tensor([0, 3, 4, 5]),
    }
    assert passes(inputs, draw(6, 5, seed=9), sinks=draw(2, seed=8), window=(1, 1), **cu_seqlens)


@sampled(
    "window, seqlens",
    [(w, lengths) for lengths in (None, torch.tensor([4, 6])) for w in (3, 1, 8)],
    push=1,
)
def test_lazy_of_6_rows_with_one_head_that_relu_cuts_and_one_it_does_not(window, seqlens):
    inputs = lazy_inputs(6, window=window, tau=(0.6, -0.8))
    options = {"family": "lazy", "seqlens": seqlens}
    z = forward(
        inputs["q"], inputs["k"], inputs["v"], bias=inputs["bias"], tau=inputs["tau"], **options
    )["Z"]
    assert z.abs().min() > KINK_DISTANCE
    assert (z < 0).any()
    assert (z > 0).any()
    assert passes(inputs, inputs["bias"], inputs["tau"], **options)
