"""Which way a tile lies is read off the kernel; what cannot be followed stays open."""

import pytest
import triton
import triton.language as tl

from gradprobe.kernels.triton import lazy
from gradprobe.runtime.taps.axes import ONE, order_of, shapes_behind
from gradprobe.source.triton_source import call_tree
from tests.runtime.taps import written


def shapes(kernel, function=None):
    tree = call_tree(kernel)
    found = next(each for each in tree if function in (None, each.name))
    return shapes_behind(tree, found, None)


@pytest.mark.parametrize(
    ("kernel", "order"),
    [(lazy.lazy_forward_kernel, "mn"), (lazy.lazy_dq_kernel, "mn"), (lazy.lazy_dkdv_kernel, "nm")],
)
def test_the_tiles_of_the_lazy_kernels_lie_as_they_say(kernel, order):
    found = shapes(kernel)
    assert found["p"] == found["valid"] == tuple(f"offs_{axis}" for axis in order)
    assert found["k"] == ("offs_n", "offs_d")
    assert found["lse"] == ("offs_m",)


def test_tiles_are_followed_into_functions_that_are_called_and_back():
    inner = shapes(written.fused_backward_kernel, "inner_dkdv")
    assert inner["qT"] == ("offs_k", "offs_m")
    assert inner["pT"] == inner["dsT"] == ("offs_n", "offs_m")
    assert inner["dk"] == ("offs_n", "offs_k")
    other = shapes(written.fused_backward_kernel, "inner_dq")
    assert other["m"] == ("offs_m", ONE)
    assert other["ds"] == ("offs_m", "offs_n")


def test_block_pointers_are_not_followed():
    found = shapes(written.decorated_dq_kernel.fn.fn)
    assert found["q"] is found["p"] is found["dp"] is None
    # What multiplies a tile of unknown axes with one of known ones has those that are known.
    assert found["ds"] == ("offs_qm", None)


@triton.jit
def turned(x):
    return tl.trans(x)


@triton.jit
def hidden(x):
    offs_m = tl.arange(0, 16)
    return x[:, None] + offs_m[None, :]


@triton.jit
def odd_kernel(a_ptr, n, FLAG: tl.constexpr):
    offs_m = tl.arange(0, 16)
    offs_n = n + tl.arange(0, 16)
    tile = offs_m[:, None] + offs_n[None, :]
    twice = turned(tl.trans(tile))
    once = turned(tile)
    foreign = hidden(offs_n)
    if FLAG:
        either = tile
        same = once
    else:
        either = once
        same = tile.T
    shaped = tl.reshape(tile, (16, 16))
    loaded = tl.load(a_ptr + tile, mask=tile > 0)
    summed = tl.sum(tile, 0)
    apart = offs_m[:, None] + (offs_m + n)[None, :]
    tl.store(a_ptr + tile, loaded + shaped + twice + foreign + either + same + summed + apart)


def test_transposes_cancel_and_branches_must_agree():
    found = shapes(odd_kernel)
    assert found["tile"] == found["twice"] == found["loaded"] == ("offs_m", "offs_n")
    assert found["once"] == found["same"] == ("offs_n", "offs_m")
    assert found["either"] is found["shaped"] is None
    assert found["summed"] == ("offs_n",)
    # The called function's own offs_m is not the caller's.
    assert found["foreign"] == ("offs_n", "hidden.offs_m")


def test_an_order_is_told_only_where_the_labels_tell_it():
    m, n = ("m",), ("n",)
    assert order_of(("m", "n"), [m, n]) is False
    assert order_of(("n", "m"), [m, n]) is True
    assert order_of((None, "m"), [m, n]) is True
    assert order_of(("m", None), [m, n]) is False
    for tile in (None, (None, None), ("x", "y"), ("m", "m"), ("m",), (ONE, None)):
        assert order_of(tile, [m, n]) is None
    assert order_of(("m", "n"), [m, m]) is None
    assert order_of(("m", "n"), [None, None]) is None


@triton.jit
def early_kernel(a_ptr, n):
    offs_m = tl.arange(0, 16)
    x = offs_m[:, None]
    if n > 3:
        x = tl.load(a_ptr + offs_m)
        tl.store(a_ptr + offs_m, x)
        return
    tl.store(a_ptr + x, x)


def test_a_way_that_returns_says_nothing_of_what_variables_hold_behind_it():
    assert shapes(early_kernel)["x"] == ("offs_m", ONE)
