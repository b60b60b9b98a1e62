"""Targets of a few lines of torch, right or with a fault of addressing, written to files."""

HEAD = """
import os, signal, time
import torch

def grads(q, k, v, do, causal, scale):
    q, k, v = (x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in (q, k, v))
    s = scale * q @ k.mT
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    o = s.softmax(-1) @ v
    return dict(zip(("dQ", "dK", "dV"), torch.autograd.grad((o * do).sum(), (q, k, v))))

def through(x, strides):
    return x.as_strided(x.shape, strides, x.storage_offset())
"""

RIGHT = "def backward(q, k, v, do, *, causal=False, scale=1.0):\n    return grads(q, k, v, do, causal, scale)\n"

# By name: what stands before the call of `grads`.
FAULTS = {
    "do_by_q_heads": "do = through(do, (do.stride(0), q.stride(1), do.stride(2), do.stride(3)))",
    "crash_in_one_layout_and_hang_in_another": "do.stride(2) > do.stride(1) > 1 and (q.is_contiguous()"
    " and os.kill(os.getpid(), signal.SIGSEGV) or do.stride() != q.stride() and time.sleep(600))",
    "wrong_beyond_32_bits": "k = k * 2 if k.stride(2) > 2**20 else k",
    "wrong_where_rows_lie_far_apart": "k = k * 2 if k.stride(2) > 2**12 else k",
    "crash_beyond_32_bits": "k.stride(2) > 2**20 and os.kill(os.getpid(), signal.SIGSEGV)",
    "crash_where_rows_lie_far_apart": "k.stride(2) > 2**12 and os.kill(os.getpid(), signal.SIGSEGV)",
    "crash_always": "os.kill(os.getpid(), signal.SIGSEGV)",
}


def write(folder, name):
    path = folder / f"{name}.py"
    text = RIGHT.replace("    return", f"    {FAULTS.get(name, 'pass')}\n    return")
    path.write_text(HEAD + text)
    return f"{path}:backward"
