"""The numbers of docs/found.md on PyTorch's SDPA: `python docs/found/sdpa_numbers.py` on a GPU. It needs torch alone.

Each number is the largest error of a gradient over the largest value of that gradient, beside float64.
"""

import platform
import sys
from contextlib import nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
BACKENDS = {"default": None, "cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
BACKENDS |= {"efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
SHAPES = {"B=2 H=4 L=256 D=64": (2, 4, 256, 64), "B=1 H=16 L=1024 D=128": (1, 16, 1024, 128)}

# How a program goes on from O [B, H, L, D], and so how dO lies. `other` is what is joined to O.
ENDS = {
    "dO contiguous": lambda o, other: o,
    "heads merged": lambda o, other: o.transpose(1, 2).flatten(2),
    "heads merged, dO made contiguous by a hook": lambda o, other: contiguous_do(o).transpose(1, 2).flatten(2),
    "torch.cat of heads": lambda o, other: torch.cat([o, other], 1),
    "torch.cat of rows": lambda o, other: torch.cat([other, o], 2),
    "torch.cat of head dims": lambda o, other: torch.cat([o, other], 3),
}


def contiguous_do(o):
    o.register_hook(lambda do: do.contiguous())
    return o


def formula(q, k, v, mask=None):
    """Attention in plain operations; a row that sees no key has P = 0, and so O = 0."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if mask is None:
        return torch.softmax(scores, -1) @ v
    return (torch.softmax(scores.masked_fill(~mask, -1e300), -1) * mask) @ v


def gradients(attention, inputs, begin, end, weight, dtype):
    """O, dQ, dK and dV of sum(weight * end(attention(q, k, v)))."""
    q, k, v, other = (begin(x.to(dtype)).detach().requires_grad_() for x in inputs)
    o = attention(q, k, v)
    loss = (end(o, other) * weight.to(dtype)).sum()
    return [o.detach(), *torch.autograd.grad(loss, (q, k, v))]


def off(found, expected):
    """The largest error over the largest expected value; NaN where one came."""
    return ((found.double() - expected).abs().max() / expected.abs().max()).item()


def line(name, backend, attention, expected, *how):
    """Runs one backend, and prints one line."""
    with sdpa_kernel(BACKENDS[backend]) if BACKENDS[backend] else nullcontext():
        try:
            found = gradients(attention, *how)
        except RuntimeError as error:
            print(f"  {name:44} {backend:10} refused: {str(error).splitlines()[0]}")
            return
    numbers = "  ".join(
        f"{n} {off(f, e):7.4f}" for n, f, e in zip(["O", "dQ", "dK", "dV"], found, expected, strict=True)
    )
    print(f"  {name:44} {backend:10} {numbers}")


def layouts(shape, dtype, begin_name):
    """Every way on from O, by every backend."""
    inputs = torch.randn(4, *shape, device=DEVICE, dtype=dtype).unbind()
    begin = (lambda x: x) if begin_name == "contiguous" else (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))
    for name, end in ENDS.items():
        weight = torch.randn_like(end(inputs[0].clone().requires_grad_(), inputs[3]))
        expected = gradients(formula, inputs, begin, end, weight, torch.float64)
        for backend in BACKENDS:
            line(name, backend, sdpa, expected, inputs, begin, end, weight, dtype)


def masks(shape, dtype):
    """Boolean masks with and without rows that see no key, by every backend that takes a mask."""
    n_ctx = shape[2]
    causal = torch.ones(n_ctx, n_ctx, device=DEVICE, dtype=torch.bool).tril()
    padded = causal.clone()
    padded[:, : n_ctx // 4] = False
    one_row = torch.ones_like(causal)
    one_row[5] = False
    of_batch = torch.stack([padded] + [causal] * (shape[0] - 1))[:, None]
    inputs = torch.randn(4, *shape, device=DEVICE, dtype=dtype).unbind()
    weight = torch.randn(shape, device=DEVICE, dtype=dtype)
    cases = {
        "every row sees a key (causal)": (causal, weight),
        "causal, a quarter of padding on the left": (padded, weight),
        "the same, the loss leaves those rows out": (padded, weight * padded.any(-1)[:, None]),
        "the same mask for the first of the batch": (of_batch, weight),
        "one row without keys": (one_row, weight),
    }
    plain = [lambda x: x, lambda o, other: o]
    for name, (mask, kept) in cases.items():
        expected = gradients(lambda *qkv, m=mask: formula(*qkv, m), inputs, *plain, kept, torch.float64)
        for backend in BACKENDS:
            line(name, backend, lambda *qkv, m=mask: sdpa(*qkv, m), expected, inputs, *plain, kept, dtype)


def versions():
    """What the numbers were made with."""
    print(f"Python {platform.python_version()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    if DEVICE == "cuda":
        print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    print("order of choice:", *(b.name for b in torch.nn.attention._cur_sdpa_kernel_backends(with_priority=True)))


versions()
for dtype in (torch.float16, torch.bfloat16) if DEVICE == "cuda" else (torch.float32,):
    for shape_name, shape in SHAPES.items():
        for begin in "contiguous", "[B, L, H, D] views":
            torch.manual_seed(0)
            print(f"\n{dtype}, {shape_name}, q, k and v {begin}")
            layouts(shape, dtype, begin)
        torch.manual_seed(0)
        q = torch.randn(shape, device=DEVICE, dtype=dtype, requires_grad=True)
        seen = torch.ones(shape[2], shape[2], device=DEVICE, dtype=torch.bool)
        chosen = [SDPBackend(torch._fused_sdp_choice(q, q, q, *mask)).name for mask in ([], [seen])]
        print(f"\n{dtype}, {shape_name}, masks; the default is {chosen[0]} without a mask, {chosen[1]} with one")
        masks(shape, dtype)
