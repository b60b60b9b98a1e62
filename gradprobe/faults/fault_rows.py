"""What formulas may have become: a row is a fault, in one sentence, and the formulas that it makes otherwise.

Its texts may hold {n}, the rows or keys of a tile; {m} and {n} of both; {size} of square ones; {dtype} that something
is rounded to; and {first}, the first sum that is wrong. It stands for one of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..model.intermediates import PRODUCTS, names, steps, title
from .hypothesis import SCORED, SIZES, Hypothesis

EVERYTHING = frozenset(names())
_IN_TILES = "within the tiles of {m} rows and {n} keys that are visited"


# --- which keys are seen, and what scores are made of


def _seeing(needs: str, fault: str, summary: str, sees: str, fix: str = "", also: Sequence[str] = ()) -> Hypothesis:
    wrong = SCORED.union(also)
    return Hypothesis(f"mask/{fault}", "M1", summary, fix=fix, wrong=wrong, sees=sees, needs=needs)


def _windows() -> Iterator[Hypothesis]:
    for at, side in enumerate(("left", "right")):
        for words, end in (
            ("reaches one key fewer", f"window[{at}] - 1"),
            ("reaches one key more", f"window[{at}] + 1"),
            ("has no end", "-1"),
        ):
            window = f"({end}, window[1])" if side == "left" else f"(window[0], {end})"
            needs = f"window and window[{at}] > {0 if 'fewer' in words else -1}"
            sees = f"visible(window={window})"
            yield _seeing(needs, f"window-{side}", f"the window {words} to the {side}", sees)


def _left_out() -> Iterator[Hypothesis]:
    """Inputs of the scores left out, or taken with the other sign. Left out, a sink is a logit of minus infinity."""
    for name, words in (("bias", "the bias"), ("alibi", "the alibi slopes"), ("tau", "tau"), ("sinks", "the sinks")):
        nothing = "sinks - float('inf')" if name == "sinks" else f"{name} * 0.0"
        made = {"LSE": "formula"} if name == "sinks" else {}
        needs, fault = f"{name} is not None", f"mask/{name}"
        yield Hypothesis(
            fault, "M1", f"{words} left out", made, wrong=SCORED | {"dSink"}, reads={name: nothing}, tensor=name,
            needs=needs,
        )  # fmt: skip
        reads = {name: f"-{name}"}
        yield Hypothesis(fault, "M1", f"{words} taken with the other sign", wrong=SCORED, reads=reads, needs=needs)


_PADDED = "visible(seqlens=None)"
_MASKS = (
    _seeing("causal", "diagonal", "the key on the diagonal is masked: j < i stands where j <= i is meant",
            "every & (j < diagonal)"),
    _seeing("causal", "beyond-diagonal", "one key beyond the diagonal is seen", "every & (j <= diagonal + 1)"),
    _seeing("causal", "causal", "the causal mask is left out", "every"),
    _seeing("causal", "beyond-diagonal", f"one key beyond the diagonal is seen, {_IN_TILES}",
            "every & tile_sees({m}, {n}) & (j <= diagonal + 1)"),
    _seeing("causal", "causal", f"the causal mask is left out, {_IN_TILES}", "every & tile_sees({m}, {n})"),
    _seeing("not causal", "causal", "a causal mask is applied where none was asked for", "visible(causal=True)"),
    *_windows(),
    _seeing("(causal or window) and x.n_query != x.n_key", "align",
            "the diagonal ends in the other corner of the scores",
            "visible(align='top-left' if align == 'bottom-right' else 'bottom-right')"),
    _seeing("seqlens is not None", "length", "padded rows are not masked", f"{_PADDED} & (j < n_keys)"),
    _seeing("seqlens is not None", "length", "padded keys are not masked", f"{_PADDED} & (i < n_rows)"),
    _seeing("seqlens is not None", "length", "padding is not masked", _PADDED),
    _seeing("mask is not None", "mask", "the mask that is given is left out", "visible(mask=None)"),
    _seeing("mask is not None", "mask", "the mask that is given is read with its meaning reversed",
            "visible(mask=~x.mask)"),
    *_left_out(),
    Hypothesis("mask/softcap", "M1", "the scores in P are not capped, though dS has the softcap's derivative",
               {"P": "P * (scores - softcap * tanh).exp()"}, needs="softcap is not None"),
    Hypothesis("mask/softcap", "M1", "the softcap left out", wrong=SCORED, reads={"softcap": "None"},
               needs="softcap is not None"),
)  # fmt: skip


def _bias_windows() -> Iterator[Hypothesis]:
    """A bias of the lazy family that ends one distance early, hides the keys beyond it, or goes on beyond it."""
    fault, fewer = "mask/bias-window", "the bias reaches one distance fewer: distance < window - 1"
    fix, some = "compare with distance < window", "lazy and bias is not None and bias.shape[1] > 1"
    of_dbias = {"dBias": "without_last(dBias)"}
    # dBias is 0 at the last distance then; where that alone is wrong, nothing else was read so.
    alone = f"{some} and seen.own == ('dBias',) and not bool(seen.actual['dBias'][:, -1].any())"
    yield Hypothesis(fault, "M1", fewer, of_dbias, fix, is_plain=True, needs=alone)
    cut = {"bias": "without_last(bias)"}
    yield Hypothesis(fault, "M1", fewer, of_dbias, fix, SCORED | {"dBias"}, reads=cut, needs=some)
    short = "lazy and bias is not None and bias.shape[1] < x.n_key"
    words, fix = (
        "the keys beyond the bias's window are left out",
        "attend to every key j <= i; the window is the bias's",
    )
    in_tiles = ", in whole tiles of {n} keys, by tiles of {m} rows"
    # What lies in a tile that holds any key of any row's window.
    kept = "valid & (i // {m} * {m} - (j // {n} * {n} + {n} - 1) < x.bias.shape[1])"
    for where, sees in (("", "valid & (i - j < x.bias.shape[1])"), (in_tiles, kept)):
        yield _seeing(short, "bias-window", words + where, sees, fix, ("dTau",))
    words = "keys beyond the bias's window have the bias of its last distance, where they have none"
    fix = "add tl.where(distance < window, bias, 0.0)"
    of_last = {"LSE": "(s + last_bias).logsumexp(-1)", "P": "P * last_bias.exp()"}
    for more in ({}, {"dBias": "with_all_beyond(dBias, dS, i - j)"}):
        wrong = ("LSE", "P", "O", "dP", *more)
        yield Hypothesis(fault, "M1", words, of_last | more, fix, wrong, needs=short)


# --- terms of formulas


def _delta(word: str, words: str, formula: str, fix: str, of: str = "delta", needs: str = "True") -> Hypothesis:
    return Hypothesis(f"delta/{word}", "A", f"delta {words}", {of: formula}, fix, ("delta", "dS"), needs=needs)


def _deltas() -> Iterator[Hypothesis]:
    ds = "dS = P * (dP - delta)"
    yield _delta("dropped", "is not subtracted: dS = P * dP", "0 * delta", ds)
    yield _delta("sign", "is added where it is to be subtracted", "-delta", ds)
    outside = "(P * dP - delta[..., None] * valid) * slope"
    yield _delta("unweighted", "is subtracted outside the product: dS = P * dP - delta", outside, ds, "dS")
    fix, other = "delta = rowsum(P * dP)", "rowsum(dO * O), which holds tau's share, where rowsum(P * dP) is meant"
    by_other = "is computed by another formula: "
    yield _delta("formula", by_other + other, "(do * (pe @ v)).sum(-1)", fix, needs="lazy")
    fix, other = "delta = rowsum(dO * O)", "rowsum(P * dP), which differs from rowsum(dO * O) here"
    yield _delta("formula", by_other + other, "(P * dP).sum(-1)", fix, needs="not lazy")
    for words, formula in (
        ("is rowsum(dO), without O", "do.sum(-1)"),
        ("is rowsum(O * O)", "(O**2).sum(-1)"),
        ("is rowsum(dP), without P", "dP.sum(-1)"),
        ("is the mean over the head dim, where the sum is meant", "delta / do.shape[-1]"),
    ):
        yield _delta("formula", words, formula, "")
    yield _delta("from-unmasked", "sums dP before its mask", "(P * dpe).sum(-1)", "")


def _slopes() -> Iterator[Hypothesis]:
    """The softcap's derivative as another function of T = tanh(S / softcap)."""
    fix = "dS = P * (dP - delta) * (1 - tanh(S / softcap)^2)"
    for words, slope in (
        ("is missing in dS", "1.0"),
        ("is applied twice", "(1 - tanh ** 2) ** 2"),
        ("is 1 - tanh(S)^2, of S not divided by the softcap", "1 - scores.tanh() ** 2"),
    ):
        made = {"dS": f"P * spread * ({slope})"}
        summary = f"the softcap's derivative {words}"
        yield Hypothesis("softcap/derivative", "A", summary, made, fix, needs="softcap is not None")


_OF_TAU = ("O", "dP", "delta", "dV", "dTau")
_TAU = "tau is not None"


def _weighed(weights: str, dp: str = "") -> dict[str, str]:
    """What is made with other weights in place of relu(P + tau / (i + 1)); and dP by another mask."""
    made = {"O": f"product('O', {weights})", "dV": f"product('dV', {weights})"}
    return made | ({"dP": dp} if dp else {})


def _positions() -> Iterator[Hypothesis]:
    """tau divided by another number, [m or 1, n or 1], in dTau too and not."""
    for words, divisor in (
        ("i + 2", "i + 2.0"), ("i", "i + 0.0"), ("the key's j + 1", "j + 1.0"), ("the length", "i * 0.0 + n_key"),
        ("the distance i - j + 1", "i - j + 1.0"),
    ):  # fmt: skip
        made = _weighed(f"z({divisor}).relu() * valid", f"dpe * (valid & (z({divisor}) > 0))")
        of_dtau = {"dTau": f"(dP / ({divisor})).nan_to_num(posinf=0.0, neginf=0.0).sum((-2, -1))"}
        summary = f"tau is divided by {words}, where i + 1 is meant"
        for more in (of_dtau, {}):
            yield Hypothesis("tau/position", "A", summary, made | more, "tau / (i + 1)", _OF_TAU, needs=_TAU)


def _relus() -> Iterator[Hypothesis]:
    summary = "the ReLU's mask is missing in dP: its entries flow where P + tau / (i + 1) <= 0 too"
    fix = "dP = [P + tau / (i + 1) > 0] * (dO V^T)"
    yield Hypothesis("relu/mask", "A", summary, {"dP": "dpe * valid"}, fix, _OF_TAU, needs=_TAU)
    summary = "the ReLU is left out: P + tau / (i + 1) weighs where it is negative too"
    made = _weighed("z(i + 1) * valid")
    yield Hypothesis("relu/missing", "A", summary, made, "relu(P + tau / (i + 1))", needs=_TAU)
    for words, dp in (
        ("without dividing it by i + 1", "dP"),
        ("before it is masked", "dpe / (i + 1)"),
        ("without the ReLU's mask", "dpe * valid / (i + 1)"),
    ):
        made = {"dTau": f"({dp}).sum((-2, -1))"}
        fix = "dTau = sum of dP / (i + 1)"
        yield Hypothesis("tau/gradient", "A", f"dTau sums dP {words}", made, fix, needs=_TAU)
    # tau added behind the causal mask: what is masked weighs tau / (i + 1) where tau > 0, as far as it is visited.
    fix = "mask the sum: tl.where(valid, relu(P + tau / (i + 1)), 0), and P + tau / (i + 1) > 0 with it"
    summary = "the causal mask is applied before tau is added: masked keys weigh tau / (i + 1) where tau > 0"
    weights = "z(i + 1.0).relu() * every"
    for where, more in (("", ""), (f", {_IN_TILES}", " * tile_sees({m}, {n})")):
        made = _weighed(weights + more, f"dpe * ({weights}{more} > 0)")
        yield Hypothesis("tau/mask", "M1", summary + where, made, fix, (*made, "dTau"), needs=_TAU)


def _dropout(word: str, summary: str, **made: str) -> Hypothesis:
    return Hypothesis(f"dropout/{word}", "DRP", summary, made, needs="keep is not None")


_DROPOUT = (
    _dropout("scale", "1 / (1 - p) is missing in dV", dV="dV * (1 - dropout)"),
    _dropout("scale", "1 / (1 - p) is missing in dP", dP="dP * (1 - dropout)"),
    _dropout("scale", "1 / (1 - p) is missing", O="O * (1 - dropout)", dV="dV * (1 - dropout)",
             dP="dP * (1 - dropout)"),
    _dropout("dv", "dropout is left out of dV: P^T dO of all of P", dV="product('dV', P)"),
    _dropout("dp", "dropout is left out of dP", dP="dpe * valid"),
)  # fmt: skip


# --- rows that see no key


DEAD_FIX = "where LSE is -inf take 0 in its place, and let masked scores stay -inf"


def _dead_rows() -> Iterator[Hypothesis]:
    """NaN in the rows that see no key, from each step on; or the same weight on every key there."""
    fix, spread = DEAD_FIX, "and spread: exp(-inf - -inf), or 0 / 0"
    in_tiles = "and spread within tiles of {m} rows and {n} keys"
    for step, words, where, needs in (
        ("LSE", spread, "dead[..., 0]", "dead"), ("O", spread, "dead", "dead"), ("P", spread, "dead", "dead"),
        ("P", in_tiles, "dead & tile_sees({m}, {n})", "dead and causal"),
    ):  # fmt: skip
        summary = f"rows that see no key are NaN in {step}, {words}"
        made = {step: f"{step}.masked_fill(({where}).expand({step}.shape), nan)"}
        yield Hypothesis("dead/nan", "N1", summary, made, fix, not_finite=True, needs=needs)
    # A key weighs a share of all keys, or of whole tiles; in P 1 where LSE is too large for log N to be added.
    summary = "rows that see no key weigh every key alike: their scores are all the same finite number"
    shares = [f"1 / (-(-x.n_key // {size}) * {size})" for size in (1, *SIZES)]
    for of_p, of_o in (("1.0", "1.0"), *zip(shares, shares, strict=True), *(("1.0", share) for share in shares)):
        made = {"P": f"P.masked_fill(dead, {of_p})", "O": f"O.where(~dead, {of_o} * v.sum(-2, keepdim=True))"}
        for unmasked in ({}, {"dP": "dpe"}):
            yield Hypothesis("dead/uniform", "N1", summary, made | unmasked, fix, ("P", "O"), needs="dead")


# --- products


_OPERANDS = (
    ("dQ", "k", "q v do"), ("dK", "q", "k do v O"), ("dV", "do", "O q v"), ("dQ", "dS", "P dP"), ("dK", "dS", "P dP"),
    ("dV", "P", "dS dP P"), ("dP", "v", "k"), ("dP", "do", "O q"), ("O", "v", "k"),
)  # fmt: skip
"""The result, the operand meant, and what may stand there."""


def _operands() -> Iterator[Hypothesis]:
    """Every product with each other operand of the same shape."""
    formulas = {row.name: f"{row.name} = {step.formula}" for row, step in steps("softmax")}
    for result, meant, every in _OPERANDS:
        for other in every.split():
            made, needs = f"product({result!r}, other={other})", "True"
            if result == "dP":
                made = f"({f'{other} @ v.mT' if meant == 'do' else f'do @ {other}.mT'}) * valid"
            elif meant == PRODUCTS[result].matrix:
                made = f"product({result!r}, {other})"
            if meant in ("q", "k", "v", "do"):
                needs = f"{meant}.shape[2:] == {'do' if other == 'O' else other}.shape[2:]"
            elif meant == other:
                needs = "lazy or keep is not None"  # elsewhere nothing stands in the place of P
            words = f"{formulas[result]} is made with {title(other)} in place of {title(meant)}"
            yield Hypothesis(f"operand/{result}", "A", words, {result: made}, formulas[result], needs=needs)


# How tiles are multiplied: each turned; by the operand of the result's own tile; by one row of the other's.
_TURNED, _OF_OWN_TILE, _OF_OWN_ROW = "hrsji,hsjd->hrid", "hrsij,hrjd->hrid", "hrsij,hsid->hrid"


def _by_tiles() -> Iterator[Hypothesis]:
    """Products whose matrix is not transposed, that take the operand of their own tile, or one row throughout.

    In square tiles, as kernels compute: one row of each is that of a thread's own number, not the loop's.
    """
    is_square = "x.n_query == x.n_key"
    for size, inside in (("max(x.n_query, x.n_key)", "throughout"), ("{size}", "tile by tile of {size}")):
        # (gradient, the operand meant, that of the same tile, what the sum runs over, what the gradient has one of)
        for result, meant, own, of_sum, of_result in (
            ("dQ", "k", "q", "key", "row"), ("dK", "q", "k", "row", "key"), ("dV", "do", "v", "row", "key"),
        ):  # fmt: skip
            of, tensor = PRODUCTS[result], title(meant)
            words = f"{result} is {of.turned.formula}, where {of.formula} is meant, {inside}"
            made = f"by_tiles('{result}', {meant}, {size}, '{_TURNED}')"
            needs = is_square if inside == "throughout" else "True"
            yield Hypothesis(f"transposed/{result}", "A", words, {result: made}, needs=needs)
            if inside != "throughout":
                words = f"{result} is made with {title(own)} in place of {tensor}, {inside}"
                made = f"by_tiles('{result}', {own}, {size}, '{_OF_OWN_TILE}')"
                needs = f"{meant}.shape[-1] == {own}.shape[-1]"
                yield Hypothesis(f"operand/{result}", "A", words, {result: made}, needs=needs)
            words = f"{result} reads {tensor} at the number of its own {of_result}, not at each {of_sum} of its sum"
            fix = f"read {tensor} at the {of_sum} of the loop, not at that of the thread"
            made = f"by_tiles('{result}', {meant}, {size}, '{_OF_OWN_ROW}')"
            yield Hypothesis(f"operand/{result}-row", "A", f"{words}, {inside}", {result: made}, fix)


# --- tiles that a sum leaves out, or keeps alone


OVERWRITTEN = "it is overwritten, not added to"
"""What is said of a sum that keeps the last of what is added to it."""
_ALONE = "ACC", "accumulation/{first}"
_OF_EITHER = (
    ("M3", "tile/{first}-last-AXIS", "leaves out the AXIS beyond the last whole tile of {n}", "AT < END // {n} * {n}"),
    (*_ALONE, f"keeps the last tile of {{n}} AXIS alone: {OVERWRITTEN}", "AT >= (END - 1) // {n} * {n}"),
    ("M2", "tile/{first}-last-AXIS", "leaves out the last tile of {n} AXIS", "AT < (END - 1) // {n} * {n}"),
    ("M2", "tile/{first}-first-AXIS", "leaves out the first {n} AXIS", "AT >= {n}"),
    ("M2", "tile/{first}-AXIS-beyond", "leaves out the AXIS beyond {n}", "AT < {n}"),
)
"""What a sum does with tiles of rows or keys, and what it keeps by their numbers and the length."""
_OF_BOTH = (
    ("M2", "tile/{first}-first-rows", "skips the first tile of {m} rows that sees each tile of {n} keys",
     "i // {m} > of_first_key(first_row, {n}) // {m}"),
    ("M2", "tile/{first}-first-rows", "begins {m} rows late: at the end of each tile of {n} keys, not at its start",
     "i >= (j // {n} * {n} + {n} - 1) // {m} * {m}"),
    ("M2", "tile/{first}-last-rows", "ends with the rows that see the first key of each tile of {n}",
     "i // {m} <= (of_first_key(end_row, {n}) - 1) // {m}"),
    ("M2", "tile/{first}-first-keys", "begins with the keys that the last row of each tile of {m} sees",
     "j // {n} >= of_row(first_key, {m}, {m} - 1) // {n}"),
    ("M2", "tile/{first}-last-keys", "ends with the keys that the first row of each tile of {m} sees",
     "j // {n} <= (of_row(end_key, {m}, 0) - 1) // {n}"),
    ("M2", "tile/{first}-last-keys", "ends one tile of {n} keys before the last that each tile of {m} rows sees",
     "j // {n} * {n} < of_row(end_key, {m}, {m} - 1) - {n}"),
    (*_ALONE, f"keeps the last tile of {{n}} keys that each tile of {{m}} rows sees: {OVERWRITTEN}",
     "j // {n} == (of_row(end_key, {m}, {m} - 1) - 1) // {n}"),
    ("M2", "tile/{first}-keys-step", "steps over the keys by {m}, the tile of rows, where tiles of keys hold {n}",
     "j % {m} < {n}"),
    ("M2", "tile/{first}-rows-step", "steps over the rows by {n}, the tile of keys, where tiles of rows hold {m}",
     "i % {n} < {m}"),
)  # fmt: skip
"""The same of what tiles see by a causal mask and a window."""


def _tiles() -> Iterator[Hypothesis]:
    rows = list[tuple[str, ...]]()
    for row in _OF_EITHER:
        for axis, at in (("rows", "i"), ("keys", "j")):
            texts = (text.replace("AXIS", axis).replace("AT", at).replace("END", f"n_{axis}") for text in row)
            rows.append(tuple(texts))
    for fault_class, fault, does, kept in (*rows, *_OF_BOTH):
        sees = f"valid & ({kept})"
        yield Hypothesis(fault, fault_class, f"{{first}} {does}", wrong=EVERYTHING, sees=sees)


# --- what is rounded to fewer bits before it is used


_INPUTS = ("q", "k", "v", "do")
_GRADIENTS = ("dQ", "dK", "dV", "dBias")


def _rounding(words: str, word: str, made: Mapping[str, str], inputs: Sequence[str] = ()) -> Hypothesis:
    summary, fix = f"{words} is rounded to {{dtype}} before it is used", f"keep {words} in float32 until it is used"
    reads = {name: f"rounded({name}, '{{dtype}}')" for name in inputs}
    return Hypothesis(f"precision/{word}", "PREC", summary, made, fix, reads=reads, dtype="{dtype}")


def _of_matrix(matrix: str) -> dict[str, str]:
    """The products of P, or of dS, with that rounded."""
    found = dict[str, str]()
    for name, of in PRODUCTS.items():
        if of.matrix == matrix:
            found[name] = f"product('{name}', rounded({'pe' if matrix == 'P' else matrix}, '{{dtype}}'))"
    return found


def _roundings() -> Iterator[Hypothesis]:
    of_p, of_ds = _of_matrix("P"), _of_matrix("dS")
    for tensor in _INPUTS:
        yield _rounding(title(tensor), tensor, {}, (tensor,))
    yield _rounding("every input", "inputs", {}, _INPUTS)
    yield _rounding("each of P and dS", "P-dS", of_p | of_ds)
    yield _rounding("every operand of a product", "operands", of_p | of_ds, _INPUTS)
    for name in _GRADIENTS[:3]:
        made = {name: f"rounded_sum('{name}', {{n}}, '{{dtype}}')"}
        yield _rounding(f"the sum of {name}, after every {{n}},", name, made)
    yield _rounding("dS", "dS", of_ds)
    yield _rounding("P", "P", of_p)
    for step in ("P", "dP", "dS", "delta", "LSE", "O", *_GRADIENTS):
        words = f"{step}, on its way out," if step in _GRADIENTS else step
        yield _rounding(words, step, {step: f"rounded({step}, '{{dtype}}')"})


FORMULAS = (
    *_MASKS, *_bias_windows(), *_deltas(), *_slopes(), *_positions(), *_relus(), *_DROPOUT, *_dead_rows(),
)  # fmt: skip
OPERANDS = (*_operands(), *_by_tiles())
SUMS = (*_tiles(), *_roundings())
