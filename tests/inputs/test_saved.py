import os

import numpy as np
import pytest
import torch

from gradprobe.inputs.saved import SavedInputs, load, save
from gradprobe.inputs.tensor_layouts import for_more_batches, place, placements_of
from gradprobe.model.assignment import AS_SAVED
from gradprobe.model.failures import UsageFailure

SHAPE = (2, 3, 5, 4)


def drawn(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape or SHAPE, generator=generator).to(dtype)


def plain(**more):
    return {name: drawn() for name in ("q", "k", "v", "do")} | more


def as_set(tensors, **options):
    values = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return SavedInputs(values, placements_of(tensors), options)


def written(tmp_path, tensors, **options):
    path = tmp_path / "set.pt"
    save(path, as_set(tensors, **options))
    return path


def laid_out(saved):
    return place(saved.values, (("all", AS_SAVED),), saved.placements).tensors


def test_values_strides_and_options_come_back(tmp_path):
    blhd = drawn(2, 5, 3, 4, dtype=torch.bfloat16).transpose(1, 2)
    tensors = dict.fromkeys(("q", "k", "v", "do"), blhd)
    tensors |= {"mask": drawn(1, 1, 5, 5) > 0, "sinks": drawn(3)}
    options = {"causal": True, "scale": 0.3, "window": (2, -1), "align": "top-left"}
    found = load(str(written(tmp_path, tensors, **options)))
    assert found.options == options
    again = laid_out(found)
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(again[name], tensor)
        assert again[name].stride() == tensor.stride(), name


def test_arrays_of_numpy_are_read_in_any_order_of_bytes(tmp_path):
    saved_by_numpy(**numbers(q=np.ones(SHAPE, ">f4"), causal=np.array(True)))(
        tmp_path / "set.npz"
    )
    found = load(str(tmp_path / "set.npz"))
    assert (found.values["q"].sum(), found.options) == (120, {"causal": True})


def test_an_expanded_do_keeps_strides_of_0_and_an_offset_of_3_its_misalignment(tmp_path):
    odd = drawn(200)[3 : 3 + 120].view(SHAPE)
    tensors = plain(do=drawn(2, 1, 5, 1).expand(SHAPE), q=odd)
    found = laid_out(load(str(written(tmp_path, tensors))))
    assert found["do"].stride() == (5, 0, 1, 0)
    assert torch.equal(found["do"], tensors["do"])
    assert found["q"].storage_offset() % 128 == 3
    assert torch.equal(found["q"], odd)


def test_a_bias_of_two_axes_gets_four_and_a_lazy_one_stays(tmp_path):
    found = load(str(written(tmp_path, plain(bias=drawn(7, 7)[:5, :5]))))
    assert laid_out(found)["bias"].stride()[2:] == (7, 1)
    assert laid_out(found)["bias"].shape == (1, 1, 5, 5)
    lazy = load(str(written(tmp_path, plain(bias=drawn(3, 5), tau=drawn(3)))))
    assert lazy.values["bias"].shape == (3, 5)


class Sneaky:
    def __reduce__(self):
        return (os.mkdir, ("was-here",))


def saved_by_torch(content):
    return lambda path: torch.save(content, path)


def saved_by_numpy(**arrays):
    def write(path):
        with path.open("wb") as file:
            np.savez(file, **arrays)

    return write


def numbers(**more):
    return {name: np.zeros(SHAPE, np.float32) for name in ("q", "k", "v", "do")} | more


def truncated(path):
    save(path.with_name("whole.pt"), as_set(plain()))
    path.write_bytes(path.with_name("whole.pt").read_bytes()[:700])


def nan_at(name):
    tensors = plain()
    tensors[name][1, 2, 3, 0] = torch.nan
    return tensors


def without(*names):
    return {name: tensor for name, tensor in plain().items() if name not in names}


HUGE = {"q.strides": [1 << 40, 20, 4, 1]}
CU = {"cu_seqlens_k": torch.tensor([0, 5])}
WRONG = [
    ("set.pt", saved_by_torch(plain(q=Sneaky())), ("cannot be read as tensors alone", "never unpickled")),
    ("set.pt", truncated, ("cannot be read as tensors alone",)),
    ("set.pt", saved_by_torch([drawn()]), ("must hold a dict of tensors by name, got list",)),
    ("set.npz", saved_by_numpy(**numbers(q=np.array([Sneaky()], dtype=object))), ("cannot be read as tensors alone",)),
    ("set.safetensors", saved_by_torch(plain()), ("must end in .npz or .pt, got .safetensors",)),
    ("set.pt", saved_by_torch(without("do")), ("do missing among q, k, v",)),
    ("set.pt", saved_by_torch(plain(query=drawn())), ("unknown name 'query'", "tensors: q, k, v, do, bias")),
    ("set.pt", saved_by_torch(plain(q=drawn(3, 5, 4))), ("q must have four axes, [B, H, L, D], got [3, 5, 4]",)),
    ("set.pt", saved_by_torch({name: torch.zeros(0, 3, 5, 4) for name in plain()}), ("a tensor is empty",)),
    ("set.pt", saved_by_torch(plain(q=torch.zeros(SHAPE, dtype=torch.int64))), ("q must be float32 or", "got int64")),
    ("set.pt", saved_by_torch(plain(q=drawn().half())), ("must have one dtype, got q float16, k float32", "autocast")),
    ("set.pt", saved_by_torch(plain(q=drawn().to_sparse())), ("q must be a dense tensor, got torch.sparse_coo",)),
    ("set.pt", saved_by_torch(plain(mask=torch.ones(2, 2, 5, 5).bool())), ("mask must broadcast to [B, H, M, N]",)),
    ("set.pt", saved_by_torch(plain(tau=drawn(2))), ("the lazy family needs tau [H] = [3], got [2]",)),
    ("set.pt", saved_by_torch(plain(tau=drawn(3), bias=drawn(5, 5))), ("lazy bias must be [H, W] with H = 3",)),
    ("set.pt", saved_by_torch(nan_at("do")), ("do holds 1 NaN or infinite numbers, the first at [1, 2, 3, 0]",)),
    ("set.pt", saved_by_torch(plain(family="linear")), ("family must be softmax or lazy, got 'linear'",)),
    ("set.pt", saved_by_torch(plain(**CU)), ("cu_seqlens_k needs cu_seqlens_q",)),
    ("set.pt", saved_by_torch(plain() | HUGE), ("q.strides and q.offset reach", "leave them out")),
    ("set.pt", saved_by_torch(plain() | {"q.strides": [60, 20, 4]}), ("q.strides must be 4 numbers", "got 3")),
    ("set.pt", saved_by_torch(plain() | {"q.strides": [0, 20, 4, 1]}), ("put several elements of q into one place",)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "write", "pieces"), WRONG)
def test_a_broken_or_hostile_file_is_refused_in_a_sentence_and_nothing_in_it_is_called(
    tmp_path, monkeypatch, name, write, pieces
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name)
    with pytest.raises(UsageFailure) as failure:
        load(str(tmp_path / name))
    words = f"{failure.value} {failure.value.way_out}"
    assert words.startswith(f"--inputs {tmp_path / name}: ")
    assert all(piece in words for piece in pieces), words
    assert "\n" not in words
    assert not (tmp_path / "was-here").exists()


def test_a_nan_beyond_the_live_length_and_minus_infinity_in_a_bias_may_stand(tmp_path):
    tensors = plain(seqlens=torch.tensor([5, 3]), bias=torch.full((1, 1, 5, 5), -torch.inf))
    tensors["k"][1, :, 3:] = torch.nan
    assert load(str(written(tmp_path, tensors))).values["k"].isnan().sum() == 24
    tensors["k"][1, :, 2] = torch.nan
    with pytest.raises(UsageFailure, match="k holds 12 NaN"):
        load(str(written(tmp_path, tensors)))


def test_tensors_of_2_batches_lie_as_they_did_for_9():
    alone = drawn(2, 3, 5, 4).permute(2, 1, 0, 3)  # [5, 3, 2, 4], batches inside of rows
    places = for_more_batches(placements_of({"q": alone}), {"q": (9, 3, 2, 4)})
    nine = drawn(9, 3, 2, 4)
    assert torch.equal(place({"q": nine}, (("all", AS_SAVED),), places).tensors["q"], nine)
