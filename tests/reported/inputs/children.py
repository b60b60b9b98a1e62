"""Right gradients of targets that do something to their process, or return tensors that say what is not there."""

import os
import signal
import subprocess
import sys

import torch


def _gradients(q, k, v, do, scale):
    p = torch.softmax(q @ k.mT * scale, -1)
    ds = p * (do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True))
    return {"dQ": ds @ k * scale, "dK": ds.mT @ q * scale, "dV": p.mT @ do}


def leaving(q, k, v, do, *, scale):
    """Leaves a process of a session of its own behind, which outlives whoever is killed with its group."""
    if not os.path.exists("left"):
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        no = subprocess.DEVNULL
        left = subprocess.Popen(sleep, start_new_session=True, stdout=no, stderr=no)
        with open("left", "w") as file:
            file.write(str(left.pid))
    if os.path.exists("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    return _gradients(q, k, v, do, scale)


class Flattering(torch.Tensor):
    """Whatever is computed of it is as of the right gradient."""

    right = None

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            args = (cls.right if isinstance(one, cls) else one for one in args)
            return func(*args, **(kwargs or {}))


class Wrapping(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        make, strides = torch.Tensor._make_wrapper_subclass, inner.stride()
        made = make(cls, inner.shape, dtype=inner.dtype, strides=strides)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        inner = (one.inner if isinstance(one, cls) else one for one in args)
        return func(*inner, **(kwargs or {}))


def flattering(q, k, v, do, *, scale):
    found = _gradients(q, k, v, do, scale)
    Flattering.right = found["dQ"]
    return found | {"dQ": (found["dQ"] * 2).as_subclass(Flattering)}


def wrapping(q, k, v, do, *, scale):
    found = _gradients(q, k, v, do, scale)
    return found | {"dQ": Wrapping(found["dQ"])}
