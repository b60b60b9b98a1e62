"""An attention backward in plain torch, with lines of its own before it returns."""

from gradprobe.targets.find import find_target

GRADIENTS = ("dQ", "dK", "dV")


def backward_with(folder, *lines, results=GRADIENTS):
    """The target of a file in a folder, which returns some of P, dP, dS, dQ, dK and dV."""
    own = "\n    ".join(lines)
    returned = ", ".join(f'"{name}": {name.lower()}' for name in results)
    (folder / "kernel.py").write_text(f"""
import torch

def backward(q, k, v, do, *, scale):
    p = (scale * q @ k.mT).softmax(-1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    dq, dk, dv = scale * ds @ k, scale * ds.mT @ q, p.mT @ do
    {own}
    return {{{returned}}}
""")
    return find_target(f"{folder}/kernel.py:backward", "softmax")
