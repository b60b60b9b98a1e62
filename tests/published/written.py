"""A small attention in the form in which kernels are published, whose text tests edit.

One program holds a whole head: what matters here is what stands around the arithmetic.
"""

SOURCE = """
import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()
EMPTY = torch.empty(4, device="cuda")
STAGES = 3 if torch.cuda.get_device_capability()[0] >= 9 else 2


def is_hip():
    return triton.runtime.driver.active.get_current_target().backend == "hip"


CONFIGS = [triton.Config({"BLOCK": block}, num_warps=1 if is_hip() else 4, num_stages=STAGES) for block in (16, 32, 64)]


@triton.jit
def probabilities(q, k, offs, scale, causal, N: tl.constexpr):
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = (offs[None, :] < N) & (offs[:, None] < N)
    if causal:
        seen = seen & (offs[None, :] <= offs[:, None])
    s = tl.where(seen, s, -1e30)
    p = tl.exp(s - tl.max(s, 1)[:, None])
    p = tl.where(seen, p, 0.0)
    return p / (tl.sum(p, 1) + (offs >= N))[:, None]


@triton.autotune(CONFIGS, key=["N"])
@triton.heuristics({"EVEN": lambda args: args["N"] % args["BLOCK"] == 0})
@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, causal, N: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr
):
    tl.static_assert(BLOCK >= N)
    offs, dims = tl.arange(0, BLOCK), tl.arange(0, D)
    at = tl.program_id(0) * N * D + offs[:, None] * D + dims[None, :]
    inside = (offs[:, None] < N) | EVEN
    q = tl.load(q_ptr + at, inside, 0.0)
    k = tl.load(k_ptr + at, inside, 0.0)
    v = tl.load(v_ptr + at, inside, 0.0)
    p = probabilities(q, k, offs, scale, causal, N)
    tl.store(o_ptr + at, tl.dot(p, v, input_precision="ieee"), inside)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, sm_scale):
        q, k, v = (tensor.contiguous() for tensor in (q, k, v))
        batch, heads, n, d = q.shape
        o = torch.empty_like(q)
        forward_kernel[(batch * heads,)](q, k, v, o, sm_scale, causal, n, d)
        ctx.save_for_backward(q, k, v)
        ctx.causal, ctx.scale = causal, sm_scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        s = q @ k.mT * ctx.scale
        if ctx.causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
        p, dp = s.softmax(-1), do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * ctx.scale
        dq, dk, dv = ds @ k, ds.mT @ q, p.mT @ do
        return dq, dk, dv, None, None


attention = Attention.apply
"""


def edited(*edits: tuple[str, str]) -> str:
    """The text with each edit made in every place where it fits, of which there must be one."""
    text = SOURCE
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text
