"""Faults in plain torch of kinds that no kernel of the package is planted with; and noise, a fault of no kind."""

from typing import Any

from tests.planted.planting import UNCOVERED, Edit, Planted, everywhere

HOST, ROWS, KEYS, BOX = "plain_backward", "of_rows", "of_keys", "plain-black-box"
GROUPED, CAUSAL = {"heads": 4, "kv_heads": 2}, {"causal": True}
DISTINCT = {"layouts": (("all", "distinct"),), "causal": True}
DS = "    ds = p * (dp - delta[..., None]) * slope\n"
NOISE = "torch.randn(ds.shape, generator=torch.Generator().manual_seed(5))"


def behind_the_forward(line: str) -> Edit:
    """What all of the backward finds otherwise."""
    start = "    delta = (do * o).sum(-1)\n"
    return Edit(HOST, start, f"    {line}\n{start}")


def of_ds(line: str) -> tuple[Edit, ...]:
    """What both functions of the backward make of dS, where `some(share)` is true of a share of its elements."""
    drawn = "(torch.rand(ds.shape, generator=torch.Generator().manual_seed(6)) < "
    return everywhere((ROWS, KEYS), DS, f"{DS}    ds = {line.replace('some(', drawn)}\n")


def by_stride(name: str, axis: int, of: str) -> str:
    """A tensor read by another one's stride along an axis."""
    strides = [f"{of if at == axis else name}.stride({at})" for at in range(4)]
    return f"{name} = {name}.as_strided({name}.shape, ({', '.join(strides)}), {name}.storage_offset())"


def plain(
    cause: str, *edits: Edit, says: tuple[str, ...] = (), of: str = "plain", **options: Any
) -> Planted:
    return Planted(f"{cause} {says[:1]}", of, edits, options, cause=cause, says=says)


def noise(name: str, *edits: Edit, of: str = "plain", **options: Any) -> Planted:
    return Planted(name, of, edits, options, kind=UNCOVERED)


PLAIN_FAULTS = (
    plain("index/lse-batch", behind_the_forward("lse = lse[:1].expand_as(lse)"), **CAUSAL),
    plain("index/do-kv-head", behind_the_forward("do = do[:, torch.tensor([0, 0, 1, 1])]"), of=BOX,
        **GROUPED),
    plain("index/alibi-head", behind_the_forward("alibi = alibi[:1].expand_as(alibi)"), of=BOX, alibi=True),
    plain("index/keep-batch", behind_the_forward("keep = keep[:1].expand_as(keep)"), of=BOX, dropout=0.3),
    plain("stride/v-batch", behind_the_forward(by_stride("v", 0, "k")), **DISTINCT),
    plain("stride/k-dim", Edit(ROWS, "    s, slope =", f"    {by_stride('k', 3, 'q')}\n    s, slope ="), **DISTINCT),
    plain("mask/window-right", behind_the_forward("seen = visible(q, k, causal, (window[0], window[1] + 1), mask)"),
        window=(7, 3)),
    plain("accumulation/dQ",
        Edit(ROWS, "    s, slope =", "    seen = seen & (torch.arange(k.shape[2]) >= 32)\n    s, slope =")),
    plain("tile/dK-last-rows",
        Edit(KEYS, "    s, slope =", "    seen = seen & (torch.arange(q.shape[2]) < 32)[:, None]\n    s, slope ="),
        says=("dK leaves out the rows beyond the last whole tile of 32",)),
    plain("operand/dQ", Edit(ROWS, "ds @ k", "ds @ v")),
    plain("transposed/dK", Edit(KEYS, "ds.mT @ q", "ds @ q")),
    plain("precision/do", behind_the_forward("do = do.bfloat16().float()"), **CAUSAL),
    plain("factor/P", *everywhere((ROWS, KEYS), "torch.exp(s", "2 * torch.exp(s")),
    plain("twice/dV", Edit(HOST, '"dK": dk', '"dK": dv')),  # no swap: the other came right
    plain("factor/dQ", Edit(ROWS, "ds @ k * scale", "ds @ k"),
        says=("dQ is off by the factor 1/scale throughout", "multiply dQ by scale")),
    plain("factor/dV", Edit(KEYS, ".mT @ do", ".mT @ do * 2"), says=("multiply dV by 1/2",)),
    plain("factor/dV", Edit(KEYS, ".mT @ do", ".mT @ do * 0.6931471805599453"), says=("multiply dV by log2e",)),
    plain("factor/S", Edit("scores", "* scale, 1.0", "* scale * 0.6931471805599453, 1.0"),
        says=("the scores are off by the factor ln2",)),
    plain("softcap/derivative", Edit(ROWS, "* slope", "* (1 - torch.tanh(q @ k.mT * scale) ** 2)"), softcap=2.0,
        says=("the softcap's derivative is 1 - tanh(S)^2, of S not divided by the softcap",), of=BOX),
)  # fmt: skip

NOISES = (
    noise("a tenth of the elements moved", *of_ds(f"ds + some(0.1) * {NOISE}"), **CAUSAL),
    noise("a third of the signs turned", *of_ds("torch.where(some(0.3), -ds, ds)"), **CAUSAL),
    noise("numbers of another seed", *of_ds(NOISE), of=BOX, **CAUSAL),
    noise("three elements of lse", behind_the_forward(
        "lse = lse + 3 * torch.sin(1e4 * lse) * (torch.arange(lse.numel()) % 50 == 7).view(lse.shape)")),
    noise("NaN throughout", Edit(KEYS, DS, f"{DS}    ds = ds + torch.where({NOISE} > 2, torch.nan, 0.0)\n"),
        of=BOX, causal=True, mask="dead-rows"),
)  # fmt: skip
