"""A small file of kernels to lint, whose text tests edit: nothing in it is run, so it need not compute anything."""

from pathlib import Path

from gradprobe.commands.kernel_reading import Inquiry, inquire

SOURCE = """
import torch
import triton
import triton.language as tl


@triton.jit
def product(q_ptr, do_ptr, offs_m, offs_d, stride_qm, stride_qd, stride_dom, stride_dod):
    q = tl.load(q_ptr + offs_m[:, None] * stride_qm + offs_d[None, :] * stride_qd)
    do = tl.load(do_ptr + offs_m[:, None] * stride_dom + offs_d[None, :] * stride_dod)
    return q * do


@triton.jit
def touch_kernel(
    q_ptr, do_ptr, lse_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_dob, stride_doh, stride_dom, stride_dod,
    stride_lseb, stride_lseh, stride_lsem,
    stride_dqb, stride_dqh, stride_dqm, stride_dqd,
    n_heads, BLOCK: tl.constexpr, D: tl.constexpr,
):
    tile, bh = tl.program_id(0), tl.program_id(1)
    b, h = bh // n_heads, bh % n_heads
    offs_m = tile * BLOCK + tl.arange(0, BLOCK)
    offs_d = tl.arange(0, D)
    off_q = b * stride_qb + h * stride_qh
    off_do = b * stride_dob + h * stride_doh
    q_ptr += off_q
    do_ptr += off_do
    lse = tl.load(lse_ptr + b * stride_lseb + h * stride_lseh + offs_m * stride_lsem)
    x = product(q_ptr, do_ptr, offs_m, offs_d, stride_qm, stride_qd, stride_dom, stride_dod) - lse[:, None]
    dq_ptr += b * stride_dqb + h * stride_dqh
    tl.store(dq_ptr + offs_m[:, None] * stride_dqm + offs_d[None, :] * stride_dqd, x)


def launch(q, do, lse, dq):
    touch_kernel[(1, q.shape[0] * q.shape[1])](
        q, do, lse, dq,
        *q.stride(), *do.stride(), *lse.stride(), *dq.stride(),
        q.shape[1], BLOCK=32, D=32,
    )


def backward(q, k, v, do):
    dq = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32)
    launch(q, do, lse, dq)
    return {"dQ": dq}
"""


def reading(folder: Path, *edits: tuple[str, str], more: str = "") -> Inquiry:
    """What is found in the file with some replacements made in it, each of which must have one place.

    Args:
        more: written behind it.
    """
    text = SOURCE
    for find, replace in edits:
        assert text.count(find) == 1, f"{find!r} stands {text.count(find)} times"
        text = text.replace(find, replace)
    path = folder / "mine.py"
    path.write_text(text + more)
    return inquire(str(path), None)
