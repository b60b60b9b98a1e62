import contextlib
import os
import signal
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional

from gradprobe.commands.record.capture import PATIENCE, WatchedFunction, put_in_place
from gradprobe.commands.record.watched_calls import CapturePlan, WatchedCalls
from gradprobe.inputs.saved import load
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.assignment import AS_SAVED
from gradprobe.model.failures import UsageFailure


def attention(q, k, v, scale=0.5, causal=False):
    scores = scale * q @ k.mT
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v


def inputs(batch=2, heads=3, rows=5, dim=4):
    return [
        torch.randn(batch, rows, heads, dim).transpose(1, 2).requires_grad_() for _ in range(3)
    ]


@pytest.fixture
def watching(tmp_path):
    return lambda function, folder=tmp_path / "kept", keep=16: WatchedFunction(
        function, "own:function", CapturePlan(folder, keep, "bhld"), WatchedCalls()
    )


@pytest.fixture
def watched(watching):
    return watching(attention)


def sets(watch):
    return [load(str(watch._how.folder / name)) for name in watch.seen.kept]


def laid_out(saved):
    return place(saved.values, (("all", AS_SAVED),), saved.placements).tensors


def test_values_layouts_options_and_do_are_those_of_the_call(watched):
    q, k, v = inputs()
    do = torch.randn(2, 5, 3, 4).transpose(1, 2)
    watched.wrapped(q, k, v=v, causal=True).backward(do)
    (found,) = sets(watched)
    assert found.options == {"scale": 0.5, "causal": True}
    again = laid_out(found)
    for name, tensor in {"q": q, "k": k, "v": v, "do": do}.items():
        assert torch.equal(again[name], tensor)
        assert again[name].stride() == (60, 4, 12, 1)


def test_gradients_values_and_random_numbers_are_bit_for_bit_the_program_s_own(watched):
    def program(function):
        torch.manual_seed(3)
        q, k, v = inputs()
        torch.nn.functional.dropout(function(q, k, v)).square().sum().backward()
        return [q.grad, k.grad, v.grad, torch.rand(4), torch.get_rng_state()]

    assert all(map(torch.equal, program(watched.wrapped), program(attention)))
    assert len(watched.seen.kept) == 1


def test_each_layout_of_q_of_do_and_each_option_is_a_set_of_its_own(watched):
    q, k, v = inputs()
    for causal in (False, True):
        watched.wrapped(q, k, v, causal=causal).sum().backward()
        watched.wrapped(q, k, v, causal=causal).backward(torch.randn(2, 3, 5, 4))
        watched.wrapped(q.contiguous(), k, v, causal=causal).sum().backward()
    found = sets(watched)
    assert len(found) == 6
    strides = [laid_out(one)["do"].stride() for one in found[:3]]
    assert strides == [(0, 0, 0, 0), (60, 20, 4, 1), (0, 0, 0, 0)]


def test_changes_in_place_after_the_call_do_not_reach_the_set(watching):
    watch = watching(lambda q, k, v: q * 1 + k + v)
    tensors = [leaf * 1 for leaf in inputs()]
    before = [tensor.detach().clone() for tensor in tensors]
    output = watch.wrapped(*tensors)
    with torch.no_grad():
        torch._foreach_zero_(tensors)
    # dO is what arrives at the output, and not what the loss began with.
    (output * 3).backward(torch.ones(2, 3, 5, 4))
    (found,) = sets(watch)
    wanted = [*before, torch.full((2, 3, 5, 4), 3.0)]
    assert all(map(torch.equal, map(found.values.get, ("q", "k", "v", "do")), wanted))


def test_graphs_that_wait_hold_8_copies_at_most_and_the_next_call_with_a_do_is_kept(watched):
    outputs = [watched.wrapped(*inputs()) for _ in range(3 * PATIENCE)]
    (form,) = watched._forms.values()
    assert form.copies == PATIENCE == 8
    sum(output.sum() for output in outputs[PATIENCE:]).backward()
    assert watched.seen.kept == {}
    watched.wrapped(*inputs()).sum().backward()
    assert len(watched.seen.kept) == 1


def test_the_third_set_beyond_a_limit_of_2_is_not_kept_and_said(watching):
    watch = watching(attention, keep=2)
    for rows in (4, 5, 6, 7, 6):
        watch.wrapped(*inputs(rows=rows)).sum().backward()
    assert len(watch.seen.kept) == 2
    assert watch.seen.sentences() == ["a set beyond the limit of --keep 2 (2 times)"]


def test_what_cannot_be_kept_or_written_is_counted_and_the_program_goes_on(watching, tmp_path):
    watch = watching(lambda q, k, v: [q, k, v])
    assert watch.wrapped(1, 2, 3) == [1, 2, 3]
    with pytest.raises(TypeError):
        watch.wrapped(1)
    *_, first, last = watch.seen.left_out
    assert first.endswith(" was called without a tensor for q, k, v")
    assert "TypeError" in last
    (tmp_path / "file").write_text("")
    watch = watching(lambda q, k, v: (attention(q, k, v), "more"), tmp_path / "file" / "below")
    q, k, v = inputs()
    output, more = watch.wrapped(q, k, v)  # a tuple's first tensor is the output
    output.sum().backward()
    assert (more, q.grad is not None) == ("more", True)
    assert "NotADirectoryError" in watch.seen.sentences()[0]


def test_a_child_forked_while_another_thread_watches_goes_on_and_counts_anew(watched):
    watched.seen.calls = 7
    with ThreadPoolExecutor() as pool:
        pool.submit(watched._lock.acquire).result()  # and its thread lives on
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            with contextlib.suppress(TypeError):
                watched.wrapped(None, None, None)
            os._exit(watched.seen.calls)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_masks_and_dropout_are_told_apart_by_their_dtype_and_noted(watching):
    def own(query, key, value, attn_mask=None, dropout_p=0.0, rope=None):
        return attention(query, key, value)

    watch, (q, k, v) = watching(own), inputs()
    watch.wrapped(q, k, v, torch.ones(5, 5).bool(), 0.1, rope=torch.ones(3)).sum().backward()
    watch.wrapped(q, k, v, torch.ones(5, 5)).sum().backward()
    kept = [
        {"mask", "bias", "dropout"} & {*found.values, *found.options} for found in sets(watch)
    ]
    assert kept == [{"mask"}, {"bias"}]
    notes = [words.split(" is ")[0] for words in watch.seen.left_out]
    assert notes == ["the argument rope of own:function", "dropout"]


def test_a_backward_keeps_the_do_o_and_lse_that_it_is_given(watching):
    watch = watching(lambda q, k, v, do, o, lse: {"dV": do})
    q, k, v = (tensor.detach() for tensor in inputs())
    for do in (*[torch.ones(2, 3, 5, 4)] * 20, torch.ones(()).expand(2, 3, 5, 4)):
        watch.wrapped(q, k, v, do, torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 5))
    found = sets(watch)
    assert len(found) == 2
    assert set(found[0].values) == {"q", "k", "v", "do", "o", "lse"}


def test_torch_s_own_attention_is_kept_with_its_options(watching):
    watch, (q, k, v) = watching(functional.scaled_dot_product_attention), inputs()
    watch.wrapped(q, k, v, is_causal=True, scale=0.3).sum().backward()
    watch.wrapped(q[:, :, :3], k, v, is_causal=True).sum().backward()
    options = [found.options for found in sets(watch)]
    assert options == [{"causal": True, "scale": 0.3}, {"causal": True, "align": "top-left"}]


def test_a_class_is_refused():
    module = types.ModuleType("own")
    module.Linear, module.__file__ = torch.nn.Linear, "own.py"
    with pytest.raises(UsageFailure, match="own.py has no function Linear"):
        put_in_place(module, "own:Linear", None, WatchedCalls())
