"""Taps are proposed for variables of the usual names, and every proposal can be stored."""

import pytest
import torch
import triton
import triton.language as tl

from gradprobe.inputs.draw import draw
from gradprobe.inputs.layouts import place
from gradprobe.kernels.triton import lazy
from gradprobe.runtime.taps import parse_tap, propose, tapped
from gradprobe.runtime.trace import expected_shapes
from tests.cases import lazy_case
from tests.runtime.taps import written

on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter alone runs these kernels as they stand")


def test_the_lazy_backward_is_proposed_kernel_by_kernel_with_the_dkdv_tiles_transposed():
    assert propose([lazy.lazy_forward_kernel, lazy.lazy_dq_kernel, lazy.lazy_dkdv_kernel]) == [
        "delta=lazy_dq_kernel:delta[b,h,offs_m]",
        "P=lazy_dq_kernel:p[b,h,offs_m,offs_n]",
        "dP=lazy_dq_kernel:dp[b,h,offs_m,offs_n]",
        "dS=lazy_dq_kernel:ds[b,h,offs_m,offs_n]",
        "delta=lazy_dkdv_kernel:delta[b,h,offs_m]",
        "P=lazy_dkdv_kernel:p[b,h,offs_m,offs_n].T",
        "dP=lazy_dkdv_kernel:dp[b,h,offs_m,offs_n].T",
        "dS=lazy_dkdv_kernel:ds[b,h,offs_m,offs_n].T",
    ]


def test_python_functions_under_the_kernels_will_do_and_a_forward_alone_has_none():
    assert propose([lazy.lazy_dq_kernel.fn]) == propose([lazy.lazy_dq_kernel])
    assert propose([lazy.lazy_forward_kernel]) == []
    assert propose([]) == []


def test_batch_and_head_of_inner_functions_come_from_the_kernel_that_calls_them():
    assert propose([written.fused_backward_kernel]) == [
        "P=inner_dkdv:pT[bhid//H,bhid%H,offs_m,offs_n].T",
        "delta=inner_dkdv:Di[bhid//H,bhid%H,offs_m]",
        "dP=inner_dkdv:dpT[bhid//H,bhid%H,offs_m,offs_n].T",
        "dS=inner_dkdv:dsT[bhid//H,bhid%H,offs_m,offs_n].T",
        "P=inner_dq:p[bhid//H,bhid%H,offs_m,offs_n]",
        "dP=inner_dq:dp[bhid//H,bhid%H,offs_m,offs_n]",
        "dS=inner_dq:ds[bhid//H,bhid%H,offs_m,offs_n]",
    ]


def test_a_scale_in_ds_is_divided_out_and_axes_that_cannot_be_followed_are_guessed():
    assert propose([written.decorated_dq_kernel.fn.fn]) == [
        "delta=decorated_dq_kernel:Di[off_b,off_h,offs_qm]",
        "P=decorated_dq_kernel:p[off_b,off_h,offs_qm,offs_n]",
        "dP=decorated_dq_kernel:dp[off_b,off_h,offs_qm,offs_n]",
        "dS=decorated_dq_kernel:ds[off_b,off_h,offs_qm,offs_n]/softmax_scale",
    ]


@triton.jit
def renewing_kernel(Q, K, num_steps, H, MASK: tl.constexpr):
    bhid = tl.program_id(0)
    offs_m = tl.arange(0, 16)
    offs_n = tl.arange(0, 16)
    q = tl.load(Q + offs_m[:, None] * 16 + offs_n[None, :])
    kT_ptrs = K + offs_m[:, None] * 16 + offs_n[None, :]
    curr_n = 0
    for _ in range(num_steps):
        kT = tl.load(kT_ptrs)
        dp = tl.dot(q, kT)
        if MASK:
            offs_n = curr_n + tl.arange(0, 16)
            dp = tl.where(offs_m[:, None] >= offs_n[None, :], dp, 0.0)
        tl.store(Q + bhid // H, tl.sum(tl.sum(dp, 1), 0))
        curr_n += 16
        kT_ptrs += 16


@triton.jit
def offset_kernel(Q, num_steps, H):
    bhid = tl.program_id(0)
    offs_m = tl.arange(0, 16)
    offs_n = tl.program_id(1) * 16 + tl.arange(0, 16)
    for start_m in range(num_steps):
        offs_m_curr = start_m * 16 + offs_m
        ds = tl.load(Q + offs_n[:, None] * H + offs_m_curr[None, :])
        tl.store(Q + bhid // H, tl.sum(tl.sum(ds, 1), 0))


def test_a_block_that_does_not_follow_the_loop_is_not_proposed():
    assert propose([renewing_kernel]) == ["dP=renewing_kernel:dp[bhid//H,bhid%H,offs_m,curr_n + tl.arange(0, 16)]"]
    assert propose([offset_kernel]) == ["dS=offset_kernel:ds[bhid//H,bhid%H,offs_m_curr,offs_n].T"]


@triton.jit
def prefixed_kernel(x_ptr, H, HQ, T):
    i_b, i_hq = tl.program_id(0) // HQ, tl.program_id(0) % HQ
    i_h = i_hq // (HQ // H)
    o_k = tl.program_id(1) * 16 + tl.arange(0, 16)
    for start in range(0, T, 16):
        o_q = start + tl.arange(0, 16)
        b_delta = tl.load(x_ptr + i_b + i_hq * T + o_q)
        b_dp = tl.load(x_ptr + i_h + o_k[:, None] * T + o_q[None, :])
        b_ds = b_dp - b_delta[None, :]
        tl.store(x_ptr + o_k[:, None] * T + o_q[None, :], b_ds)


def test_tiles_called_b_something_are_told_and_run_over_query_heads_where_there_are_two_kinds():
    assert propose([prefixed_kernel]) == [
        "delta=prefixed_kernel:b_delta[i_b,i_hq,o_q]",
        "dP=prefixed_kernel:b_dp[i_b,i_hq,o_q,o_k].T",
        "dS=prefixed_kernel:b_ds[i_b,i_hq,o_q,o_k].T",
    ]


@triton.jit
def masked_kernel(x_ptr, H, N):
    off_b, off_h = tl.program_id(0) // H, tl.program_id(0) % H
    mask_n = tl.arange(0, 16) < N
    offs_m, offs_n = tl.arange(0, 16), tl.arange(0, 16)
    ds = tl.where(mask_n[None, :], tl.load(x_ptr + off_b + off_h + offs_m[:, None] * N + offs_n[None, :]), 0.0)
    tl.store(x_ptr + offs_m[:, None] * N + offs_n[None, :], ds)


def test_a_mask_is_no_place():
    assert propose([masked_kernel]) == ["dS=masked_kernel:ds[off_b,off_h,offs_m,offs_n]"]


@triton.jit
def nameless_kernel(x_ptr):
    rows = tl.arange(0, 16)
    ds = tl.load(x_ptr + rows[:, None] * 16 + rows[None, :])
    tl.store(x_ptr + rows[:, None] * 16 + rows[None, :], ds)


def test_nothing_is_proposed_where_batch_head_or_axes_cannot_be_told():
    assert propose([nameless_kernel]) == []


@pytest.mark.nightly
@on_cpu
def test_every_proposal_for_the_lazy_backward_gives_what_the_kernels_export():
    case = lazy_case(batch=2, heads=2, seqlen=40, head_dim=16, block_m=16, block_n=32)
    tensors = place(draw(case), (("all", "contiguous"),)).tensors
    exported = lazy.lazy_backward(**tensors, export=True, block_m=16, block_n=32)
    for word in propose([lazy.lazy_preprocess_kernel, lazy.lazy_dq_kernel, lazy.lazy_dkdv_kernel]):
        tap = parse_tap(word)
        with tapped([tap], expected_shapes(case), "cpu") as session:
            lazy.lazy_backward(**tensors, block_m=16, block_n=32)
        (value,) = session.read().values.values()
        # The dkdv kernel sums the same products with the operands the other way round.
        assert torch.allclose(value, exported[tap.intermediate], rtol=0, atol=1e-5), word
