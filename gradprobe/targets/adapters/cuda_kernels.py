"""The kernels of kernels/cuda as functions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gradprobe.kernels
from gradprobe import cuda

# A block has THREADS x THREADS threads; the sizes of tiles are multiples of it.
THREADS = 16
_FOLDER = Path(gradprobe.kernels.__file__).parent / "cuda"
SOURCES = {name: _FOLDER / f"{name}.cu" for name in ("flash", "lazy", "rungs")}
_SCALARS = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


@dataclass(frozen=True)
class _Launches:
    module: Any
    row_grid: int  # blocks, one for each tile of query rows
    key_grid: int
    forward_bytes: int
    backward_bytes: int
    # What stands behind q, k and v in every kernel that looks at scores.
    extras: tuple[Tensor | None, ...]
    extra_strides: tuple[int, ...]
    options: tuple[float, ...]

    def forward(self, kernel: str, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        o, lse = q.new_empty((*q.shape[:3], v.shape[3])), _float32(q, *q.shape[:3])
        steps = (*_strided(q, k, v), *self.extra_strides, *_strided(o, lse))
        launch = (self.row_grid, (THREADS, THREADS), self.forward_bytes)
        self.module[kernel](*launch, q, k, v, *self.extras, o, lse, *steps, *self.options)
        return {"LSE": lse, "O": o}

    def backward(self, inputs: tuple[Tensor, ...], lse: Tensor) -> tuple[Any, ...]:
        """P, dP, dS, delta, to be filled; launches by rows and by keys; what all kernels take; strides."""
        q, k = inputs[:2]
        delta = _float32(q, *q.shape[:3])
        # Tiles that hold no visible key are not visited.
        scores = [_float32(q, *q.shape[:3], k.shape[2], zero=True) for _ in range(3)]
        block = (THREADS, THREADS), self.backward_bytes
        taken = (*inputs, *self.extras, lse, delta)
        steps = (*_strided(*inputs), *self.extra_strides, *_strided(lse, delta))
        return *scores, delta, (self.row_grid, *block), (self.key_grid, *block), taken, steps


def flash_cuda(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, scale: float, causal: bool = False,
    window: tuple[int, int] | None = None, align: str = "bottom-right", softcap: float | None = None,
    seqlens: Tensor | None = None, block_m: int = 32, block_n: int = 32,
    dq: Tensor | None = None, dk: Tensor | None = None, dv: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """float32 or float16 of any strides, tiles of 16 up to 256, else ValueError; float32 LSE, delta, P, dP and dS."""
    (batch, heads, rows, dim), (_, kv_heads, keys, dim_v) = q.shape, v.shape
    left, right = (rows + keys if side < 0 else side for side in window or (-1, -1))
    sides = (left, 0 if causal else right, int(align == "bottom-right"))
    sizes = (heads, heads // kv_heads, rows, keys, dim, dim_v)
    block_d, block_dv = _rounded(dim), _rounded(dim_v)
    inputs = (block_m + block_n) * (block_d + 1) + block_n * (block_dv + 1)
    scores = block_m * (block_n + 1)
    lengths = None if seqlens is None else seqlens.to(torch.int32)
    launches = _Launches(
        module=_load("flash", q, block_m, block_n, BLOCK_D=block_d, BLOCK_DV=block_dv),
        row_grid=batch * heads * -(-rows // block_m),
        key_grid=batch * kv_heads * -(-keys // block_n),
        # The structs ForwardTiles and BackwardTiles of flash.cu.
        forward_bytes=4 * (inputs + scores + 3 * block_m),
        backward_bytes=4 * (inputs + block_m * (block_dv + 1) + 2 * scores + 2 * block_m),
        extras=(lengths,),
        extra_strides=_strides(lengths, 1),
        options=(scale, softcap or 0.0, *sizes, *sides),
    )
    own = launches.forward("flash_forward", q, k, v)
    gradients = _outputs((dq, dk, dv), (q, k, v))
    return own | _flash_gradients(launches, (q, k, v, do), own, gradients, block_m)


def _flash_gradients(
    launches: _Launches, inputs: tuple[Tensor, ...], found: dict[str, Tensor], gradients: tuple[Tensor, ...],
    row_threads: int,
) -> dict[str, Tensor]:  # fmt: skip
    (q, _, v, do), (dq, dk, dv), o, lse = inputs, gradients, found["O"], found["LSE"]
    p, dp, ds, delta, by_row, by_key, taken, steps = launches.backward(inputs, lse)
    own_steps = (*_strided(o, do), *launches.extra_strides, *_strided(delta))
    own = (o, do, *launches.extras, delta, *own_steps, q.shape[1], q.shape[2], v.shape[3])
    module, end, of_rows, of_keys = launches.module, launches.options, (dq, p, dp, ds), (dk, dv)
    # A block in which each thread has one row.
    module.flash_preprocess(launches.row_grid, row_threads, 0, *own)
    module.flash_dq(*by_row, *taken, *of_rows, *steps, *_strided(*of_rows), *end)
    module.flash_dkdv(*by_key, *taken, *of_keys, *steps, *_strided(*of_keys), *end)
    return {"P": p, "dP": dp, "delta": delta, "dS": ds, "dQ": dq, "dK": dk, "dV": dv}


def lazy_cuda(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, tau: Tensor, scale: float, bias: Tensor | None = None,
    seqlens: Tensor | None = None, block_m: int = 32, block_n: int = 32,
    dq: Tensor | None = None, dk: Tensor | None = None, dv: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """With dTau [H], and dBias [H, W] of a bias [H, W] by distance i - j."""
    batch, heads, length, dim = q.shape
    block_d, tiles = _rounded(dim), (block_m + 2 * block_n, block_m)
    inputs, rows = (size * (block_d + 1) for size in tiles)
    scores = block_m * (block_n + 1)
    wide, slopes = None if bias is None else bias.float(), tau.float()
    lengths = None if seqlens is None else seqlens.int()
    launches = _Launches(
        module=_load("lazy", q, block_m, block_n, BLOCK_D=block_d),
        row_grid=batch * heads * -(-length // block_m),
        key_grid=batch * heads * -(-length // block_n),
        # The structs ForwardTiles and BackwardTiles of lazy.cu.
        forward_bytes=4 * (inputs + scores + 3 * block_m),
        backward_bytes=4 * (inputs + rows + 2 * scores + THREADS * THREADS + 2 * block_m),
        extras=(wide, slopes, lengths),
        extra_strides=(*_strides(wide, 2), *_strides(slopes, 1), *_strides(lengths, 1)),
        options=(scale, heads, length, dim, 0 if bias is None else bias.shape[1]),
    )
    found = launches.forward("lazy_forward", q, k, v)
    gradients = _outputs((dq, dk, dv), (q, k, v))
    found |= _lazy_gradients(launches, (q, k, v, do), found["LSE"], gradients)
    found["dTau"] = found["dTau"].to(tau.dtype)
    return found if bias is None else found | {"dBias": found["dBias"].to(bias.dtype)}


def _lazy_gradients(
    launches: _Launches, inputs: tuple[Tensor, ...], lse: Tensor, gradients: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    (q, *_), (dq, dk, dv), bias = inputs, gradients, launches.extras[0]
    p, dp, ds, delta, by_row, by_key, taken, steps = launches.backward(inputs, lse)
    module, options, dbias_parts = launches.module, launches.options, None
    if bias is not None:
        dbias_parts = _float32(q, launches.row_grid, bias.shape[1], zero=True)
    dtau_parts = _float32(q, launches.row_grid, 1)
    module.lazy_preprocess(*by_row, *taken, *steps, *options)
    made = (dq, dbias_parts, dtau_parts, p, dp, ds)
    module.lazy_dq(*by_row, *taken, *made, *steps, *_strided(dq, p, dp, ds), *options)
    module.lazy_dkdv(*by_key, *taken, dk, dv, *steps, *_strided(dk, dv), *options)
    results = {"P": p, "dP": dp, "delta": delta, "dS": ds, "dQ": dq, "dK": dk, "dV": dv}
    results["dTau"] = _added(launches, dtau_parts, q).reshape(-1)
    if dbias_parts is not None:
        results["dBias"] = _added(launches, dbias_parts, q)
    return results


def _added(launches: _Launches, parts: Tensor, q: Tensor) -> Tensor:
    (batch, heads, *_), threads, width = q.shape, THREADS * THREADS, parts.shape[1]
    out = _float32(q, heads, width)
    sizes = (batch, heads, launches.row_grid // (batch * heads), width)
    launches.module.lazy_add_parts(-(-heads * width // threads), threads, 0, parts, out, *sizes)
    return out


def add_one(out: Tensor, programs: int) -> None:
    """Adds 1, 2, ..., programs to each element of [H] float32 by atomic adds."""
    _rungs(out).add_one((out.shape[0], programs), 1, 0, out, out.stride(0))


def add_strided(out: Tensor, programs: int) -> None:
    rows, cols = out.shape
    _rungs(out).add_strided(programs, rows, 0, out, *out.stride(), cols)


def dots(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """[1, S, S] float32: a [S, K] times b [K, S], contiguous."""
    del precision  # it multiplies without tensor cores
    size, depth = a.shape
    out = _float32(a, 1, size, size)
    _rungs(a).dots(size, size, 0, a, b, out, depth)
    return out


def one_tile_backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, scale: float
) -> dict[str, Tensor]:
    """Softmax attention without a mask; float32, L up to 64."""
    given = [x.contiguous() for x in (q, k, v, do)]
    made = [torch.zeros_like(x) for x in given[:3]]
    batch, heads, length, dim = q.shape
    _rungs(q).one_head(batch * heads, length, 0, *given, *made, scale, length, dim)
    return dict(zip(("dQ", "dK", "dV"), made, strict=True))


def _rungs(tensor: Tensor) -> Any:
    return cuda.load(SOURCES["rungs"], defines={"SCALAR": _SCALARS[tensor.dtype]})


def _load(name: str, q: Tensor, block_m: int, block_n: int, **dims: int) -> Any:
    if q.dtype not in (torch.float32, torch.float16):
        raise ValueError(f"q must be float32 or float16, got {q.dtype}")
    most = THREADS * THREADS
    for block, size in (("block_m", block_m), ("block_n", block_n)):
        if size % THREADS or not 0 < size <= most:
            raise ValueError(f"{block} must be a multiple of {THREADS} up to {most}, got {size}")
    tiles: dict[str, str | int] = {"BLOCK_M": block_m, "BLOCK_N": block_n, **dims}
    return cuda.load(SOURCES[name], defines={"SCALAR": _SCALARS[q.dtype], **tiles})


def _strided(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for tensor in tensors for stride in tensor.stride())


def _strides(tensor: Tensor | None, axes: int) -> tuple[int, ...]:
    return (0,) * axes if tensor is None else tensor.stride()


def _rounded(head_dim: int) -> int:
    return -(-head_dim // THREADS) * THREADS


def _outputs(given: tuple[Tensor | None, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    both = zip(given, inputs, strict=True)
    return tuple(like.new_empty(like.shape) if out is None else out for out, like in both)


def _float32(like: Tensor, *sizes: int, zero: bool = False) -> Tensor:
    make = torch.zeros if zero else torch.empty
    return make(sizes, dtype=torch.float32, device=like.device)
