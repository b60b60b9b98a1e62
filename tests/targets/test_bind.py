"""A case's tensors and options under a target's own names; what it cannot take is said, never dropped."""

import math

import pytest
import torch

from gradprobe.inputs.draw import draw, outputs_of
from gradprobe.model.failures import UsageFailure
from gradprobe.model.resolution import resolve
from gradprobe.targets.bind import bind
from gradprobe.targets.find import find_target
from gradprobe.targets.naming import canonical_name, meanings

TARGETS = """
def plain(q, k, v, do): ...
def writes(q, k, v, dout, dq, dk, dv, dbias=None, dsinks=None, dtau=None): ...
def writes_otherwise(query, key, value, grad_out, grad_query, dkey, grad_v, grad_bias, d_sink, bias=None, sinks=None): 0
def of_a_lazy_bias(q, k, v, bias, tau, window_size=512): ...
def takes_lse(q, k, v, do, lse): ...
def has_head_dims(q, k, v, do, d_q=24, d_k=24, d_v=24): ...
def forward_that_writes(q, k, v, dq): ...
def packs(q, k, v, do, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k): ...
def packs_alike(q, k, v, do, cu_seqlens, max_seqlen=None): ...
def drops(q, k, v, do, dropout=0.0): ...
def masks(q, k, v, do, mask=None): ...
def torch_like(q, k, v, do, attn_mask=None): ...
def additive(q, k, v, do, bias=None): ...
"""
exec(TARGETS)


def bound(function, **options):
    case = resolve(options, "softmax", takes_bias=False)
    target, values = find_target(f"{__name__}:{function}"), draw(case)
    return bind(target, case, values | outputs_of(case, target.outputs, values))


@pytest.mark.parametrize(
    "options", [{"alibi": True}, {"mask": "random"}, {"window": (3, 0)}, {"cu_seqlens": (0, 9)}]
)
def test_an_option_that_the_target_has_no_parameter_for_is_refused_by_name(options):
    flag = "--" + next(iter(options)).replace("_", "-")
    with pytest.raises(
        UsageFailure, match=f"plain' cannot take {flag}: it has no such parameter"
    ):
        bound("plain", **options)


def test_packed_sequences_come_with_their_longest_lengths():
    found = bound("packs", cu_seqlens=(0, 5, 9), cu_seqlens_k=(0, 2, 9))
    ends = [found[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k")]
    assert ends == [[0, 5, 9], [0, 2, 9]]
    assert (found["max_seqlen_q"], found["max_seqlen_k"]) == (5, 7)
    found = bound("packs_alike", cu_seqlens=(0, 5, 9))
    assert (found["cu_seqlens"].tolist(), found["max_seqlen"]) == ([0, 5, 9], 5)
    with pytest.raises(UsageFailure, match="cannot take --cu-seqlens-k"):
        bound("packs_alike", cu_seqlens=(0, 5), cu_seqlens_k=(0, 7))


def test_dropout_needs_the_mask_that_was_drawn():
    with pytest.raises(UsageFailure, match="cannot take --dropout"):
        bound("drops", dropout=0.5)
    assert bound("drops")["dropout"] == 0.0


def test_a_boolean_mask_goes_to_mask_or_to_attn_mask_but_to_no_other_bias():
    assert str(bound("masks", mask="random")["mask"].dtype) == "torch.bool"
    assert str(bound("torch_like", mask="random")["attn_mask"].dtype) == "torch.bool"
    with pytest.raises(UsageFailure, match="cannot take --mask"):
        bound("additive", mask="random")


def test_somewhere_to_write_is_given_for_the_gradients_that_the_case_has():
    found = bound("writes", heads=4, kv_heads=2, seqlen_k=50, head_dim_v=8)
    shapes = {"dq": (2, 4, 72, 24), "dk": (2, 2, 50, 24), "dv": (2, 2, 50, 8)}
    assert {name: tuple(found[name].shape) for name in found.keys() - {*"qkv", "dout"}} == shapes
    assert all(found[name].isnan().all() for name in shapes)
    found = bound("writes_otherwise", bias=True, sinks=True)
    given = {"query", "key", "value", "grad_out", "bias", "sinks"}
    assert found.keys() - given == {"grad_query", "dkey", "grad_v", "grad_bias", "d_sink"}

    with pytest.raises(
        UsageFailure, match="needs 'd_sink', which this case does not"
    ) as refusal:
        bound("writes_otherwise", bias=True)
    assert refusal.value.way_out == "add --sinks"
    assert bound("has_head_dims").keys() == {"q", "k", "v", "do"}


def test_a_forward_is_given_nowhere_to_write_since_autograd_finds_its_gradients():
    words = "needs 'dq', where a backward writes, and takes no dO"
    with pytest.raises(UsageFailure, match=words) as refusal:
        bound("forward_that_writes")
    assert "take a parameter `do`" in refusal.value.way_out


def test_the_window_of_a_lazy_target_is_that_of_its_bias():
    case = resolve({"bias_window": 7}, "lazy", takes_bias=True)
    found = bind(find_target(f"{__name__}:of_a_lazy_bias"), case, draw(case))
    assert found["window_size"] == found["bias"].shape[1] == 7


def test_an_lse_to_base_2_lies_as_the_natural_one_does():
    case = resolve({"lse_as": "log2"}, "softmax", takes_bias=False)
    lse = torch.randn(2, 80, 3)[:, 8:].transpose(1, 2)
    given = bind(find_target(f"{__name__}:takes_lse"), case, {**draw(case), "lse": lse})["lse"]
    assert (given.stride(), given.storage_offset()) == (lse.stride(), lse.storage_offset())
    assert given.untyped_storage().nbytes() == lse.untyped_storage().nbytes()
    assert torch.equal(given, lse * math.log2(math.e))


def test_what_parameters_mean():
    alone = {"Q_bhsd": "q", "query_states": "q", "d_k": None, "k_n": None}
    assert {parameter: canonical_name(parameter) for parameter in alone} == alone
    # L is LSE in a backward that takes O and dO.
    meant = {"Q K V O dO L dQ dK dV": "lse", "q k v do L": None, "q k v o do lse L": None}
    assert {words: meanings(words.split())["L"] for words in meant} == meant
