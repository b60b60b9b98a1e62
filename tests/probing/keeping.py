"""Targets that keep something from call to call, each in a way of its own, on one right kernel for delta.

They make their inputs contiguous, so that a check calls them twice before there is a call that a fork may make.
"""

import functools
import itertools
import json
import os
import random
import signal
import time

import numpy as np
import torch
import triton

from examples.delta import delta_kernel

PROCESS = os.getpid()
WORKSPACE = torch.zeros(1, 2, 20)
BY_SHAPE, BY_PLACE, CALLS, DRAWN = {}, {}, None, None
_COUNT = 0


def right(o, do):
    found = torch.empty(do.shape[:3], dtype=torch.float32)
    block = triton.next_power_of_2(do.shape[3])
    delta_kernel[(1, do.shape[0] * do.shape[1])](
        o, do, found, *o.stride(), *do.stride(), do.shape[1], *do.shape[2:], BLOCK_M=32, BLOCK_D=block
    )
    return found


def plain(q, k, v, do, *, o):
    return {"delta": right(o.contiguous(), do.contiguous())}


def wrong_stride(q, k, v, do, *, o):
    return {"delta": right(o, do)}


def refuses(q, k, v, do, *, o):
    if not do.is_contiguous():
        raise ValueError("dO is to be contiguous")
    return plain(q, k, v, do, o=o)


def raises(q, k, v, do, *, o):
    return do.shape[9] if do.stride(2) == 0 else plain(q, k, v, do, o=o)


def writes_into_do(q, k, v, do, *, o):
    found = plain(q, k, v, do, o=o)
    do.view(-1)[:1] += 1.0 if do.is_contiguous() else 0.0
    return found


def prints(q, k, v, do, *, o):
    print("here", do.stride())
    return plain(q, k, v, do, o=o)


def workspace_not_cleared(q, k, v, do, *, o):
    WORKSPACE.add_(right(o.contiguous(), do.contiguous()))
    return {"delta": WORKSPACE.clone()}


def of_its_shape(q, k, v, do, *, o):
    if do.shape not in BY_SHAPE:
        BY_SHAPE[do.shape] = right(o.contiguous(), do.contiguous())
    return {"delta": BY_SHAPE[do.shape].clone()}


def of_its_place(q, k, v, do, *, o):
    key = do.data_ptr() % 4096, do.stride()
    BY_PLACE[key] = BY_PLACE.get(key, 0) + 1
    return {"delta": right(o.contiguous(), do.contiguous()) * (1.0 + (len(BY_PLACE) > 3))}


def from_the_fourth_call(q, k, v, do, *, o):
    global _COUNT  # noqa: PLW0603 - that is the fault
    _COUNT += 1
    return {"delta": right(o.contiguous(), do.contiguous()) + (_COUNT > 3)}


def from_a_count(q, k, v, do, *, o):
    return {"delta": right(o.contiguous(), do.contiguous()) + (next(CALLS) > 2)}


def from_a_default(q, k, v, do, *, o, seen=[]):  # noqa: B006 - that is the fault
    seen.append(0)
    return {"delta": right(o.contiguous(), do.contiguous()) + (len(seen) > 3)}


@functools.lru_cache
def scratch(rows):
    return torch.zeros(rows)


def in_a_cache(q, k, v, do, *, o):
    held = scratch(do.shape[2])
    held += 1.0
    return {"delta": right(o.contiguous(), do.contiguous()) + (held > 3)}


def on_itself(q, k, v, do, *, o):
    on_itself.calls = getattr(on_itself, "calls", 0) + 1
    return {"delta": right(o.contiguous(), do.contiguous()) + (on_itself.calls > 3)}


def on_torch(q, k, v, do, *, o):
    torch.calls_of_it = getattr(torch, "calls_of_it", 0) + 1
    return {"delta": right(o.contiguous(), do.contiguous()) + (torch.calls_of_it > 3)}


def where_nobody_looks(q, k, v, do, *, o):
    """Wrong in its second call, by what no digest holds."""
    json.JSONDecoder.calls_of_it = getattr(json.JSONDecoder, "calls_of_it", 0) + 1
    return {"delta": right(o.contiguous(), do.contiguous()) + (json.JSONDecoder.calls_of_it > 1)}


def drawn(draw):
    def target(q, k, v, do, *, o):
        return {"delta": right(o.contiguous(), do.contiguous()) + draw()}

    return target


def cached(q, k, v, do, *, o):
    """Right, though the second call finds something that the first one left."""
    BY_SHAPE.setdefault("block", scratch(1))
    return plain(q, k, v, do, o=o)


def crashes_in_forks(q, k, v, do, *, o):
    if os.getpid() != PROCESS:
        os.kill(os.getpid(), signal.SIGSEGV)
    return plain(q, k, v, do, o=o)


def hangs_in_forks(q, k, v, do, *, o):
    time.sleep(0 if os.getpid() == PROCESS else 1000)
    return plain(q, k, v, do, o=o)


of_random = drawn(lambda: random.random() < 0.5)
of_numpy = drawn(lambda: np.random.rand() < 0.5)
of_torch = drawn(lambda: bool(torch.rand(()) < 0.5))
of_a_generator = drawn(lambda: DRAWN.random() < 0.5)


def forget(name):
    """Makes this module as it was before that target's first call, the state of every generator too."""
    global _COUNT, CALLS, DRAWN  # noqa: PLW0603
    WORKSPACE.zero_()
    BY_SHAPE.clear()
    BY_PLACE.clear()
    scratch.cache_clear()
    from_a_default.__kwdefaults__["seen"].clear()
    vars(on_itself).pop("calls", None)
    vars(torch).pop("calls_of_it", None)
    if hasattr(json.JSONDecoder, "calls_of_it"):
        del json.JSONDecoder.calls_of_it
    _COUNT = 0
    # Of neither Python shows what it holds: where one is in a module, no run is made beforehand.
    CALLS = itertools.count() if name == "from_a_count" else None
    DRAWN = np.random.default_rng(0) if name == "of_a_generator" else None
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
