"""Capturing keeps real inputs and dO once per shape and layout, and leaves the program what it was."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import gradprobe
from gradprobe.commands.record.capture import PATIENCE
from gradprobe.inputs.saved import load
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.assignment import AS_SAVED
from gradprobe.model.failures import UsageFailure

ROOT = Path(__file__).resolve().parents[3]


def attention(q, k, v, scale=0.5, causal=False):
    scores = scale * q @ k.mT
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v


def inputs(batch=2, heads=3, rows=5, dim=4):
    return [
        torch.randn(batch, rows, heads, dim).transpose(1, 2).requires_grad_() for _ in range(3)
    ]


@pytest.fixture(autouse=True)
def _untold(monkeypatch):
    monkeypatch.setattr("gradprobe.commands.record.capture._tell", lambda watch: None)


@pytest.fixture
def watched(tmp_path):
    """attention, watched; its sets go to a folder of the test's own."""
    return gradprobe.capture(attention, folder=str(tmp_path / "kept"))


def sets(function):
    return [load(str(path)) for path in function.watch.files]


def laid_out(saved):
    return place(saved.values, (("all", AS_SAVED),), saved.placements).tensors


def test_values_layouts_options_and_do_are_those_of_the_call(watched):
    q, k, v = inputs()
    do = torch.randn(2, 5, 3, 4).transpose(1, 2)
    watched(q, k, v=v, causal=True).backward(do)
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

    assert all(map(torch.equal, program(watched), program(attention)))
    assert len(watched.watch.files) == 1


def test_each_layout_of_q_of_do_and_each_option_is_a_set_of_its_own(watched):
    q, k, v = inputs()
    for causal in (False, True):
        watched(q, k, v, causal=causal).sum().backward()
        watched(q, k, v, causal=causal).backward(torch.randn(2, 3, 5, 4))
        watched(q.contiguous(), k, v, causal=causal).sum().backward()
    found = sets(watched)
    assert len(found) == 6
    strides = [laid_out(one)["do"].stride() for one in found[:3]]
    assert strides == [(0, 0, 0, 0), (60, 20, 4, 1), (0, 0, 0, 0)]


def test_changes_in_place_after_the_call_do_not_reach_the_set(tmp_path):
    function = gradprobe.capture(lambda q, k, v: q * 1 + k + v, folder=str(tmp_path))
    tensors = [leaf * 1 for leaf in inputs()]
    before = [tensor.detach().clone() for tensor in tensors]
    output = function(*tensors)
    with torch.no_grad():
        torch._foreach_zero_(tensors)
    # dO is what arrives at the output, and not what the loss began with.
    (output * 3).backward(torch.ones(2, 3, 5, 4))
    (found,) = sets(function)
    assert all(map(torch.equal, (found.values[name] for name in "qkv"), before))
    assert bool((found.values["do"] == 3).all())


def test_graphs_that_are_dropped_leave_no_copy_waiting_and_at_most_8_wait_for_a_backward(watched):
    for _ in range(3 * PATIENCE):
        watched(*inputs())
    (form,) = watched.watch._forms.values()
    assert len(form.waiting) == 0
    outputs = [watched(*inputs()) for _ in range(3 * PATIENCE)]
    assert len(form.waiting) == PATIENCE == 8
    sum(output.sum() for output in outputs).backward()
    assert (len(form.waiting), len(watched.watch.files)) == (0, 1)


def test_a_layout_of_do_that_comes_after_100_others_is_kept_at_its_second_coming(watched):
    q, k, v = inputs()
    for _ in range(100):
        watched(q, k, v).sum().backward()
    watched(q, k, v).backward(torch.randn(2, 3, 5, 4))
    assert len(watched.watch.files) == 1
    watched(q, k, v).backward(torch.randn(2, 3, 5, 4))
    assert len(watched.watch.files) == 2


def test_the_third_set_beyond_a_limit_of_2_is_not_kept_and_said(tmp_path):
    function = gradprobe.capture(folder=str(tmp_path), keep=2)(attention)
    for rows in (4, 5, 6, 7, 6):
        function(*inputs(rows=rows)).sum().backward()
    assert (len(function.watch.files), function.watch.seen.over) == (2, 2)
    assert function.watch.seen.troubles() == ["2 sets more not kept: the limit is 2"]


def test_a_graph_kept_for_a_second_and_a_double_backward_stays_right(watched):
    q, k, v = (tensor.detach().double().requires_grad_() for tensor in inputs())
    assert torch.autograd.gradgradcheck(watched, (q, k, v))
    output = watched(*inputs())
    output.sum().backward(retain_graph=True)
    output.sum().backward()
    assert watched.watch.seen.failures == {}


def test_a_tuple_s_first_tensor_is_the_output_and_its_other_parts_and_exceptions_come_through(
    tmp_path,
):
    function = gradprobe.capture(
        lambda q, k, v: (attention(q, k, v), "more"), folder=str(tmp_path)
    )
    output, more = function(*inputs())
    output.sum().backward()
    assert (more, len(function.watch.files)) == ("more", 1)
    broken = gradprobe.capture(lambda q, k, v: {}["mine"], folder=str(tmp_path))
    with pytest.raises(KeyError, match="mine"):
        broken(*inputs())


def test_what_cannot_be_kept_or_written_is_counted_and_the_program_goes_on(tmp_path):
    function = gradprobe.capture(lambda q, k, v: [q, k, v], folder=str(tmp_path))
    assert function(1, 2, 3) == [1, 2, 3]
    with pytest.raises(TypeError):
        function(1)
    first, second = function.watch.seen.failures
    assert first.endswith(" was called without a tensor for q, k, v")
    assert "TypeError" in second
    (tmp_path / "file").write_text("")
    function = gradprobe.capture(attention, folder=str(tmp_path / "file" / "below"))
    q, k, v = inputs()
    function(q, k, v).sum().backward()
    assert q.grad is not None
    assert "NotADirectoryError" in function.watch.seen.troubles()[0]


def test_masks_and_dropout_are_told_apart_by_their_dtype_and_noted(tmp_path):
    def own(query, key, value, attn_mask=None, dropout_p=0.0, rope=None):
        return attention(query, key, value)

    function = gradprobe.capture(own, folder=str(tmp_path))
    q, k, v = inputs()
    function(q, k, v, torch.ones(5, 5).bool(), 0.1, rope=torch.ones(3)).sum().backward()
    function(q, k, v, torch.ones(5, 5)).sum().backward()
    first, second = sets(function)
    assert ("mask" in first.values, "bias" in first.values) == (True, False)
    assert ("mask" in second.values, "bias" in second.values) == (False, True)
    assert "dropout" not in first.options
    notes = [note.split(" is ")[0] for note in function.watch.seen.notes]
    assert notes == ["the argument rope of own", "dropout"]


def test_a_backward_keeps_the_do_o_and_lse_that_it_is_given(tmp_path):
    def backward(q, k, v, do, o, lse):
        return {"dV": do}

    function = gradprobe.capture(backward, folder=str(tmp_path))
    q, k, v = (tensor.detach() for tensor in inputs())
    for do in (*[torch.ones(2, 3, 5, 4)] * 20, torch.ones(()).expand(2, 3, 5, 4)):
        function(q, k, v, do, torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 5))
    found = sets(function)
    assert len(found) == 2
    assert set(found[0].values) == {"q", "k", "v", "do", "o", "lse"}


def test_torch_s_own_attention_is_kept_with_its_options(tmp_path):
    own = functional.scaled_dot_product_attention
    function = gradprobe.capture(own, folder=str(tmp_path))
    q, k, v = inputs()
    function(q, k, v, is_causal=True, scale=0.3).sum().backward()
    function(q[:, :, :3], k, v, is_causal=True).sum().backward()
    options = [found.options for found in sets(function)]
    assert options == [{"causal": True, "scale": 0.3}, {"causal": True, "align": "top-left"}]


@pytest.mark.parametrize(("function", "words"), [(3, "got int"), (torch.nn.Linear, "got type")])
def test_what_is_no_function_is_refused(function, words):
    with pytest.raises(UsageFailure, match=words):
        gradprobe.capture(function)


def test_importing_gradprobe_loads_no_torch_and_the_end_says_what_was_kept(tmp_path):
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import gradprobe
assert "torch" not in sys.modules
import torch
attention = gradprobe.capture(lambda q, k, v: q * 1, folder="kept")
attention(*(torch.ones(1, 1, 2, 3, requires_grad=True) for _ in "qkv")).sum().backward()
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert ran.stdout == ""
    first, second = ran.stderr.splitlines()
    assert first == "gradprobe: kept 1 set of inputs of <lambda> in kept"
    assert second.startswith("gradprobe: check with: gradprobe check TARGET --inputs kept/")
    assert (tmp_path / second.split()[-1]).is_file()
