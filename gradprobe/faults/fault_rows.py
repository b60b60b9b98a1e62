"""What formulas may have become: a row is a fault, in one sentence, and the formulas that it makes otherwise.

Its texts may hold {n}, the rows or keys of a tile; {m} and {n} of both; {size} of square ones; {dtype} that something
is rounded to; and {first}, the first sum that is wrong. It stands for one of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..model.intermediates import PRODUCTS, names, steps, title
from .hypothesis import SCORED, SIZES, Hypothesis

DEAD_FIX = "where LSE is -inf take 0 in its place, and let masked scores stay -inf"
OVERWRITTEN = "it is overwritten, not added to"
"""What is said of a sum that keeps the last of what is added to it."""
_CLASSES = {"mask": "M1", "dropout": "DRP", "dead": "N1", "precision": "PREC"}
"""By the first word of a fault; others are of the algebra."""
_INPUTS = ("q", "k", "v", "do", "bias", "alibi", "tau", "sinks", "softcap")


def _rows(text: str, needs: str = "True", fix: str = "", wrong: str = "") -> list[Hypothesis]:
    """The rows of a text, one a line: the fault; its sentence; what is made otherwise, read otherwise, or seen; and the
    class, where its word does not say that.

    Args:
        wrong: what they make wrong by themselves, where that is not what is made.
    """
    found = list[Hypothesis]()
    for line in filter(None, text.strip().splitlines()):
        fault, summary, formulas, *of = (part.strip() for part in line.split(" | "))
        pairs = dict(formula.split(" = ", 1) for formula in formulas.split("; "))
        sees, kind = pairs.pop("sees", "valid"), fault.partition("/")[0]
        reads = {name: pairs.pop(name) for name in _INPUTS if name in pairs}
        own = wrong.split() or (SCORED if reads or sees != "valid" else ())
        fault_class = of[0] if of else _CLASSES.get(kind, "A")
        is_nan = fault == "dead/nan"
        found.append(
            Hypothesis(
                fault, fault_class, summary, pairs, fix, own, sees, reads, needs=needs, not_finite=is_nan,
                dtype="{dtype}" if kind == "precision" else "",
            )
        )  # fmt: skip
    return found


# --- which keys are seen, and what scores are made of


def _windows() -> Iterator[Hypothesis]:
    for at, side, window in ((0, "left", "({0}, window[1])"), (1, "right", "(window[0], {0})")):
        own = f"window[{at}]"
        ends = {"reaches one key fewer": f"{own} - 1", "reaches one key more": f"{own} + 1", "has no end": "-1"}
        for words, end in ends.items():
            row = f"mask/window-{side} | the window {words} to the {side} | sees = visible(window={window.format(end)})"
            yield from _rows(row, f"window and {own} > {0 if 'fewer' in words else -1}")


def _inputs() -> Iterator[Hypothesis]:
    for name, words in (("bias", "the bias"), ("alibi", "the alibi slopes"), ("tau", "tau")):
        for does, formula in (("left out", f"{name} * 0.0"), ("taken with the other sign", f"-{name}")):
            yield from _rows(f"mask/{name} | {words} {does} | {name} = {formula}", f"{name} is not None")


_TILES = "in the tiles of {m} rows and {n} keys that are visited"
_MASKS = (
    *_rows(f"""
mask/diagonal | the key on the diagonal is masked: j < i stands where j <= i is meant | sees = every & (j < diagonal)
mask/beyond-diagonal | one key beyond the diagonal is seen | sees = every & (j <= diagonal + 1)
mask/causal | the causal mask is left out | sees = every
mask/beyond-diagonal | one key beyond the diagonal is seen, {_TILES} \
| sees = every & tile_sees({{m}}, {{n}}) & (j <= diagonal + 1)
mask/causal | the causal mask is left out, {_TILES} | sees = every & tile_sees({{m}}, {{n}})
""", "causal"),
    *_rows("""
mask/causal | a causal mask is applied where none was asked for | sees = visible(causal=True)
""", "not causal"),
    *_windows(),
    *_rows("mask/align | the diagonal ends in the other corner of the scores | "
           "sees = visible(align='top-left' if align == 'bottom-right' else 'bottom-right')",
           "(causal or window) and x.n_query != x.n_key"),
    *_rows("""
mask/length | padded rows are not masked | sees = visible(seqlens=None) & (j < n_keys)
mask/length | padded keys are not masked | sees = visible(seqlens=None) & (i < n_rows)
mask/length | padding is not masked | sees = visible(seqlens=None)
""", "seqlens is not None"),
    *_rows("""
mask/mask | the mask that is given is left out | sees = visible(mask=None)
mask/mask | the mask that is given is read with its meaning reversed | sees = visible(mask=~x.mask)
""", "mask is not None"),
    *_inputs(),
    # Left out, a sink is a logit of minus infinity, and LSE another than was stored.
    *_rows("mask/sinks | the sinks left out | sinks = sinks - float('inf'); LSE = formula", "sinks is not None",
           wrong="LSE P O dP dV delta dSink"),
    *_rows("""
mask/softcap | the scores in P are not capped, though dS has the softcap's derivative \
| P = P * (scores - softcap * tanh).exp()
mask/softcap | the softcap left out | softcap = None
""", "softcap is not None"),
)  # fmt: skip

# A bias of the lazy family that ends one distance early, hides the keys beyond it, or goes on beyond it.
_BIAS, _SHORT = (
    "lazy and bias is not None and bias.shape[1] > 1",
    "lazy and bias is not None and bias.shape[1] < x.n_key",
)
# dBias is 0 at the last distance then; where that alone is wrong, nothing else was read so.
_ALONE = f"{_BIAS} and seen.own == ('dBias',) and not bool(seen.actual['dBias'][:, -1].any())"
_FEWER = "mask/bias-window | the bias reaches one distance fewer: distance < window - 1 | dBias = without_last(dBias)"
_BIAS_WINDOWS = (
    *(replace(row, is_plain=True) for row in _rows(_FEWER, _ALONE, "compare with distance < window")),
    *_rows(f"{_FEWER}; bias = without_last(bias)", _BIAS, "compare with distance < window",
           "LSE P O dP dV delta dBias"),
    *_rows("""
mask/bias-window | the keys beyond the bias's window are left out | sees = valid & (i - j < x.bias.shape[1])
mask/bias-window | the keys beyond the bias's window are left out, in whole tiles of {n} keys, by tiles of {m} rows \
| sees = valid & (i // {m} * {m} - (j // {n} * {n} + {n} - 1) < x.bias.shape[1])
""", _SHORT, "attend to every key j <= i; the window is the bias's", "LSE P O dP dV delta dTau"),
    *_rows("""
mask/bias-window | keys beyond the bias's window have the bias of its last distance, where they have none \
| LSE = (s + last_bias).logsumexp(-1); P = P * last_bias.exp()
""", _SHORT, "add tl.where(distance < window, bias, 0.0)", "LSE P O dP"),
    *_rows("""
mask/bias-window | keys beyond the bias's window have the bias of its last distance, where they have none \
| LSE = (s + last_bias).logsumexp(-1); P = P * last_bias.exp(); dBias = with_all_beyond(dBias, dS, i - j)
""", _SHORT, "add tl.where(distance < window, bias, 0.0)", "LSE P O dP dBias"),
)  # fmt: skip

# --- terms of formulas

_BY = "delta is computed by another formula:"
_DELTA = """
delta/formula | delta is rowsum(dO), without O | delta = do.sum(-1)
delta/formula | delta is rowsum(dP), without P | delta = dP.sum(-1)
delta/formula | delta is the mean over the head dim, where the sum is meant | delta = delta / do.shape[-1]
delta/from-unmasked | delta sums dP before its mask | delta = (P * dpe).sum(-1)
"""
_TERMS = (
    *_rows("""
delta/dropped | delta is not subtracted: dS = P * dP | delta = 0 * delta
delta/sign | delta is added where it is to be subtracted | delta = -delta
delta/unweighted | delta is subtracted outside the product: dS = P * dP - delta \
| dS = (P * dP - delta[..., None] * valid) * slope
""", fix="dS = P * (dP - delta)", wrong="delta dS"),
    *_rows(f"""
delta/formula | {_BY} rowsum(dO * O), which holds tau's share, where rowsum(P * dP) is meant \
| delta = (do * (pe @ v)).sum(-1)
""", "lazy", "delta = rowsum(P * dP)", "delta dS"),
    *_rows(f"""
delta/formula | {_BY} rowsum(P * dP), which differs from rowsum(dO * O) here | delta = (P * dP).sum(-1)
""", "not lazy", "delta = rowsum(dO * O)", "delta dS"),
    *_rows(_DELTA, "lazy", "delta = rowsum(P * dP)", "delta dS"),
    *_rows(_DELTA, "not lazy", "delta = rowsum(dO * O)", "delta dS"),
    *_rows("""
softcap/derivative | the softcap's derivative is missing in dS | dS = P * spread
softcap/derivative | the softcap's derivative is applied twice | dS = P * spread * (1 - tanh ** 2) ** 2
softcap/derivative | the softcap's derivative is 1 - tanh(S)^2, of S not divided by the softcap \
| dS = P * spread * (1 - scores.tanh() ** 2)
""", "softcap is not None", "dS = P * (dP - delta) * (1 - tanh(S / softcap)^2)"),
    *_rows("""
dropout/scale | 1 / (1 - p) is missing in dV | dV = dV * (1 - dropout)
dropout/scale | 1 / (1 - p) is missing in dP | dP = dP * (1 - dropout)
dropout/scale | 1 / (1 - p) is missing | O = O * (1 - dropout); dV = dV * (1 - dropout); dP = dP * (1 - dropout)
dropout/dv | dropout is left out of dV: P^T dO of all of P | dV = product('dV', P)
dropout/dp | dropout is left out of dP | dP = dpe * valid
""", "keep is not None"),
)  # fmt: skip


def _taus() -> Iterator[Hypothesis]:
    """What the lazy family adds: the position that tau is divided by, the ReLU, and where it is masked."""
    tau, wrong = "tau is not None", "O dP delta dV dTau"
    made = "O = product('O', {0}); dV = product('dV', {0})"
    for words, by in (("i + 2", "i + 2.0"), ("i", "i + 0.0"), ("the key's j + 1", "j + 1.0")):
        row = f"tau/position | tau is divided by {words}, where i + 1 is meant | "
        row += made.format(f"z({by}).relu() * valid") + f"; dP = dpe * (valid & (z({by}) > 0))"
        # In dTau too, and not.
        of_dtau = f"; dTau = (dP / ({by})).nan_to_num(posinf=0.0, neginf=0.0).sum((-2, -1))"
        for more in (of_dtau, ""):
            yield from _rows(row + more, tau, "tau / (i + 1)", wrong)
    row = "relu/mask | the ReLU's mask is missing in dP: its entries flow where P + tau / (i + 1) <= 0 too | "
    yield from _rows(row + "dP = dpe * valid", tau, "dP = [P + tau / (i + 1) > 0] * (dO V^T)", wrong)
    row = "relu/missing | the ReLU is left out: P + tau / (i + 1) weighs where it is negative too | "
    yield from _rows(row + made.format("z(i + 1) * valid"), tau, "relu(P + tau / (i + 1))")
    yield from _rows("""
tau/gradient | dTau sums dP without dividing it by i + 1 | dTau = dP.sum((-2, -1))
tau/gradient | dTau sums dP before it is masked | dTau = (dpe / (i + 1)).sum((-2, -1))
tau/gradient | dTau sums dP without the ReLU's mask | dTau = (dpe * valid / (i + 1)).sum((-2, -1))
""", tau, "dTau = sum of dP / (i + 1)")  # fmt: skip
    # tau added behind the causal mask: what is masked weighs tau / (i + 1) where tau > 0, as far as it is visited.
    row = "tau/mask | the causal mask is applied before tau is added: masked keys weigh tau / (i + 1) where tau > 0"
    fix = "mask the sum: tl.where(valid, relu(P + tau / (i + 1)), 0), and P + tau / (i + 1) > 0 with it"
    for where, more in (("", ""), (f", {_TILES}", " * tile_sees({m}, {n})")):
        weights = f"z(i + 1.0).relu() * every{more}"
        formulas = f"{made.format(weights)}; dP = dpe * ({weights} > 0)"
        yield from _rows(f"{row}{where} | {formulas} | M1", tau, fix, "O dV dP dTau")


def _dead_rows() -> Iterator[Hypothesis]:
    """NaN in the rows that see no key, from each step on; or the same weight on every key there."""
    yield from _rows("""
dead/nan | rows that see no key are NaN in LSE, and spread: exp(-inf - -inf), or 0 / 0 \
| LSE = LSE.masked_fill(dead[..., 0], nan)
dead/nan | rows that see no key are NaN in O, and spread: exp(-inf - -inf), or 0 / 0 | O = O.masked_fill(dead, nan)
dead/nan | rows that see no key are NaN in P, and spread: exp(-inf - -inf), or 0 / 0 | P = P.masked_fill(dead, nan)
""", "dead", DEAD_FIX)  # fmt: skip
    yield from _rows("""
dead/nan | rows that see no key are NaN in P, and spread within tiles of {m} rows and {n} keys \
| P = P.masked_fill(dead & tile_sees({m}, {n}), nan)
""", "dead and causal", DEAD_FIX)  # fmt: skip
    # A key weighs a share of all keys, or of whole tiles; in P 1 where LSE is too large for log N to be added.
    row = "dead/uniform | rows that see no key weigh every key alike: their scores are all the same finite number | "
    shares = [f"1 / (-(-x.n_key // {size}) * {size})" for size in (1, *SIZES)]
    for of_p, of_o in (("1.0", "1.0"), *zip(shares, shares, strict=True), *(("1.0", share) for share in shares)):
        made = f"P = P.masked_fill(dead, {of_p}); O = O.where(~dead, {of_o} * v.sum(-2, keepdim=True))"
        for unmasked in ("", "; dP = dpe"):
            yield from _rows(row + made + unmasked, "dead", DEAD_FIX, "P O")


# --- products


def _operands() -> Iterator[Hypothesis]:
    """Every product with each other operand of the same shape."""
    formulas = {row.name: f"{row.name} = {step.formula}" for row, step in steps("softmax")}
    for result, meant, every in (
        ("dQ", "k", "q v do"), ("dK", "q", "k do v O"), ("dV", "do", "O q v"), ("dQ", "dS", "P dP"),
        ("dK", "dS", "P dP"), ("dV", "P", "dS dP"), ("O", "v", "k"),
    ):  # fmt: skip
        for other in every.split():
            needs, made = "True", f"product('{result}', {other})"
            if meant != PRODUCTS[result].matrix:
                needs = f"{meant}.shape[2:] == {'do' if other == 'O' else other}.shape[2:]"
                made = f"product('{result}', other={other})"
            words = f"{formulas[result]} is made with {title(other)} in place of {title(meant)}"
            yield from _rows(f"operand/{result} | {words} | {result} = {made}", needs, formulas[result])


def _by_tiles() -> Iterator[Hypothesis]:
    """Products whose matrix is not transposed, that take the operand of their own tile, or one row throughout.

    In square tiles, as kernels compute: one row of each is that of a thread's own number, not the loop's.
    """
    turned, of_own_tile, of_own_row = "hrsji,hsjd->hrid", "hrsij,hrjd->hrid", "hrsij,hsid->hrid"
    for size, inside in (("max(x.n_query, x.n_key)", "throughout"), ("{size}", "tile by tile of {size}")):
        # (gradient, the operand meant, that of the same tile, what the sum runs over, what the gradient has one of)
        for result, meant, own, of_sum, of_result in (
            ("dQ", "k", "q", "key", "row"), ("dK", "q", "k", "row", "key"), ("dV", "do", "v", "row", "key"),
        ):  # fmt: skip
            of, tensor = PRODUCTS[result], title(meant)
            row = f"transposed/{result} | {result} is {of.turned.formula}, where {of.formula} is meant, {inside} | "
            row += f"{result} = by_tiles('{result}', {meant}, {size}, '{turned}')"
            yield from _rows(row, "x.n_query == x.n_key" if inside == "throughout" else "True")
            if inside != "throughout":
                row = f"operand/{result} | {result} is made with {title(own)} in place of {tensor}, {inside} | "
                row += f"{result} = by_tiles('{result}', {own}, {size}, '{of_own_tile}')"
                yield from _rows(row, f"{meant}.shape[-1] == {own}.shape[-1]")
            words = f"{result} reads {tensor} at the number of its own {of_result}, not at each {of_sum} of its sum"
            row = f"operand/{result}-row | {words}, {inside} | "
            row += f"{result} = by_tiles('{result}', {meant}, {size}, '{of_own_row}')"
            yield from _rows(row, fix=f"read {tensor} at the {of_sum} of the loop, not at that of the thread")


# --- tiles that a sum leaves out, or keeps alone: by their numbers and the length, and by a causal mask and a window


def _tiles() -> list[Hypothesis]:
    of_axis = """
tile/{first}-last-AXIS | {first} leaves out the AXIS beyond the last whole tile of {n} \
| sees = AT < END // {n} * {n} | M3
accumulation/{first} | {first} keeps the last tile of {n} AXIS alone: OVERWRITTEN \
| sees = AT >= (END - 1) // {n} * {n} | ACC
tile/{first}-last-AXIS | {first} leaves out the last tile of {n} AXIS | sees = AT < (END - 1) // {n} * {n} | M2
tile/{first}-first-AXIS | {first} leaves out the first {n} AXIS | sees = AT >= {n} | M2
tile/{first}-AXIS-beyond | {first} leaves out the AXIS beyond {n} | sees = AT < {n} | M2
"""
    of_both = """
tile/{first}-first-rows | {first} skips the first tile of {m} rows that sees each tile of {n} keys \
| sees = i // {m} > of_first_key(first_row, {n}) // {m} | M2
tile/{first}-first-rows | {first} begins {m} rows late: at the end of each tile of {n} keys, not at its start \
| sees = i >= (j // {n} * {n} + {n} - 1) // {m} * {m} | M2
tile/{first}-last-rows | {first} ends with the rows that see the first key of each tile of {n} \
| sees = i // {m} <= (of_first_key(end_row, {n}) - 1) // {m} | M2
tile/{first}-first-keys | {first} begins with the keys that the last row of each tile of {m} sees \
| sees = j // {n} >= of_row(first_key, {m}, {m} - 1) // {n} | M2
tile/{first}-last-keys | {first} ends with the keys that the first row of each tile of {m} sees \
| sees = j // {n} <= (of_row(end_key, {m}, 0) - 1) // {n} | M2
tile/{first}-last-keys | {first} ends one tile of {n} keys before the last that each tile of {m} rows sees \
| sees = j // {n} * {n} < of_row(end_key, {m}, {m} - 1) - {n} | M2
accumulation/{first} | {first} keeps the last tile of {n} keys that each tile of {m} rows sees: OVERWRITTEN \
| sees = j // {n} == (of_row(end_key, {m}, {m} - 1) - 1) // {n} | ACC
tile/{first}-keys-step | {first} steps over the keys by {m}, the tile of rows, where tiles of keys hold {n} \
| sees = j % {m} < {n} | M2
tile/{first}-rows-step | {first} steps over the rows by {n}, the tile of keys, where tiles of rows hold {m} \
| sees = i % {n} < {m} | M2
"""
    lines = list[str]()
    for line in of_axis.strip().splitlines():
        for axis, at in (("rows", "i"), ("keys", "j")):
            lines.append(line.replace("AXIS", axis).replace("AT", at).replace("END", f"n_{axis}"))
    lines += of_both.strip().splitlines()
    text = "\n".join(lines).replace("OVERWRITTEN", OVERWRITTEN)
    found = list[Hypothesis]()
    for row in _rows(text, wrong=" ".join(names())):
        found.append(replace(row, sees=f"valid & ({row.sees})"))
    return found


# --- what is rounded to fewer bits before it is used


def _rounding(words: str, word: str, *made: str) -> list[Hypothesis]:
    row = f"precision/{word} | {words} is rounded to {{dtype}} before it is used | {'; '.join(made)}"
    return _rows(row, fix=f"keep {words} in float32 until it is used")


def _of_matrix(matrix: str) -> list[str]:
    """The products of P, or of dS, with that rounded."""
    name = "pe" if matrix == "P" else matrix
    made = f"product('{{0}}', rounded({name}, '{{{{dtype}}}}'))"
    return [f"{result} = {made.format(result)}" for result, of in PRODUCTS.items() if of.matrix == matrix]


def _roundings() -> Iterator[Hypothesis]:
    of_p, of_ds = _of_matrix("P"), _of_matrix("dS")
    gradients = ("dQ", "dK", "dV")
    inputs = {name: f"{name} = rounded({name}, '{{dtype}}')" for name in ("q", "k", "v", "do")}
    for name, formula in inputs.items():
        yield from _rounding(title(name), name, formula)
    yield from _rounding("every input", "inputs", *inputs.values())
    yield from _rounding("each of P and dS", "P-dS", *of_p, *of_ds)
    yield from _rounding("every operand of a product", "operands", *inputs.values(), *of_p, *of_ds)
    for name in gradients:
        made = f"{name} = rounded_sum('{name}', {{n}}, '{{dtype}}')"
        yield from _rounding(f"the sum of {name}, after every {{n}},", name, made)
    yield from _rounding("dS", "dS", *of_ds)
    yield from _rounding("P", "P", *of_p)
    for step in ("P", "dP", "dS", "delta", "LSE", "O", *gradients, "dBias"):
        words = f"{step}, on its way out," if step in (*gradients, "dBias") else step
        yield from _rounding(words, step, f"{step} = rounded({step}, '{{dtype}}')")


FORMULAS: Sequence[Hypothesis] = (*_MASKS, *_BIAS_WINDOWS, *_TERMS, *_taus(), *_dead_rows())
OPERANDS: Sequence[Hypothesis] = (*_operands(), *_by_tiles())
SUMS: Sequence[Hypothesis] = (*_tiles(), *_roundings())
