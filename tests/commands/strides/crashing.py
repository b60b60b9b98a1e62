"""Targets whose Triton kernel costs a GPU its process in some layouts: 32-bit offsets, and two elements loaded at once.

dO goes through the kernel, everything else through torch. Where there is no GPU a file may lose one that is not there,
the first time that a GPU would be lost.
"""

HEAD = '''
import pathlib

import torch
import triton
import triton.language as tl

MARK = {mark!r}


@triton.jit
def narrow_copy_kernel(x_ptr, out_ptr, stride_b, stride_h, stride_m, stride_d, heads, rows, dims,
                       BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    inside = (offs_m < rows)[:, None] & (offs_d < dims)[None, :]
    x = tl.load(x_ptr + b * stride_b + h * stride_h + offs_m[:, None] * stride_m + offs_d[None, :] * stride_d, inside)
    tl.store(out_ptr + (tl.program_id(1) * rows + offs_m[:, None]) * dims + offs_d[None, :], x, inside)


@triton.jit
def copy_by_pairs_kernel(x_ptr, out_ptr, stride_b, stride_h, stride_m, heads, rows, pairs,
                         BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr):
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_p = tl.arange(0, BLOCK_P)
    b, h = tl.program_id(1).to(tl.int64) // heads, tl.program_id(1).to(tl.int64) % heads
    inside = (offs_m < rows)[:, None] & (offs_p < pairs)[None, :]
    from_row = (x_ptr + b * stride_b + h * stride_h + offs_m * stride_m).to(tl.pointer_type(tl.int32))
    to_row = (out_ptr + (tl.program_id(1) * rows + offs_m) * 2 * pairs).to(tl.pointer_type(tl.int32))
    x = tl.load(from_row[:, None] + offs_p[None, :], inside)
    tl.store(to_row[:, None] + offs_p[None, :], x, inside)


def narrow_copy(x):
    lose_where(x, sum((size - 1) * step for size, step in zip(x.shape, x.stride())) >= 2**31)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    batch, heads, rows, dims = x.shape
    grid = (triton.cdiv(rows, 16), batch * heads)
    narrow_copy_kernel[grid](x, out, *x.stride(), heads, rows, dims, BLOCK_M=16, BLOCK_D=triton.next_power_of_2(dims))
    return out


def copy_by_pairs(x):
    if x.dtype == torch.float32 or x.shape[-1] % 2:
        raise NotImplementedError("pairs are of 16 bits, and all of a row lies in pairs")
    lose_where(x, x.data_ptr() % 4 or any(size > 1 and step % 2 for size, step in zip(x.shape[:-1], x.stride())))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    batch, heads, rows, dims = x.shape
    grid = (triton.cdiv(rows, 16), batch * heads)
    copy_by_pairs_kernel[grid](
        x, out, *x.stride()[:3], heads, rows, dims // 2, BLOCK_M=16, BLOCK_P=triton.next_power_of_2(dims // 2)
    )
    return out


def lose_where(x, is_lost):
    if x.is_cuda or not MARK or not is_lost or pathlib.Path(MARK).exists():
        return
    pathlib.Path(MARK).touch()

    def fail(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\\nCompile with ...")

    # Not in place of torch.cuda.synchronize: what a target replaces of torch is put back before the device is asked.
    torch.cuda._initialized, torch.cuda._utils._torch_get_device_index = True, fail
    raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")


def grads(q, k, v, do, causal, scale):
    wide = [x.detach().float().contiguous().requires_grad_() for x in (q, k, v)]
    s = scale * wide[0] @ wide[1].mT
    if causal:
        if s.shape[-1] != s.shape[-2]:
            raise NotImplementedError("causal needs as many keys as rows")
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), float("-inf"))
    found = torch.autograd.grad((s.softmax(-1) @ wide[2] * do.float()).sum(), wide)
    return {{name: x.to(q.dtype) for name, x in zip(("dQ", "dK", "dV"), found)}}


def narrow(q, k, v, do, *, causal=False, scale=1.0):
    return grads(q, k, v, narrow_copy(do), causal, scale)


def dense_pairs(q, k, v, do, *, causal=False, scale=1.0):
    """Refuses a last stride other than 1."""
    if do.stride(-1) not in (0, 1):
        raise ValueError("dO must be dense in its last dim")
    return grads(q, k, v, copy_by_pairs(do.contiguous() if do.stride(-1) == 0 else do), causal, scale)
'''


def write(folder, name, *, losing=False):
    """The word of the target of that name; losing: a device that is not there, once."""
    path = folder / f"{name}.py"
    path.write_text(HEAD.format(mark=str(folder / "lost") if losing else ""))
    return f"{path}:{name}"
