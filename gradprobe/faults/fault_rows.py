"""What formulas may have become, as rows: `table.rows_of` says how they are written.

Holes are {n} and {tile}, the rows or keys of a tile; {m} and {n} of both; {size} of square ones; {dtype};
{member} of a group of heads; {first} wrong sum; {due}, delta's formula; {value}, that of {factor}.
"""

DEAD_FIX = "where LSE is -inf take 0, and let masked scores stay -inf"

# What backwards are off by, each with its inverse.
_CONSTANTS = (
    "2 1/2, 1/2 2, -1 -1, ln2 log2e, log2e ln2, scale 1/scale, 1/scale scale, D**0.5 D**-0.5, D**-0.5 D**0.5, D 1/D, "
    "1/D D, group 1/group, 1/group group, scale**2 scale**-2, (1-p) 1/(1-p), 1/(1-p) (1-p)"
)

_MASKS = """
if causal
mask/diagonal | the key on the diagonal is masked: j < i stands for j <= i
  sees = every & (j < diagonal)
mask/beyond-diagonal | one key beyond the diagonal is seen
  sees = every & (j <= diagonal + 1)
mask/causal | the causal mask is left out
  sees = every
mask/beyond-diagonal | one key beyond the diagonal is seen, in visited tiles of {m} rows and {n} keys
  sees = every & tile_sees({m}, {n}) & (j <= diagonal + 1)
mask/causal | the causal mask is left out, in visited tiles of {m} rows and {n} keys
  sees = every & tile_sees({m}, {n})
if not causal
mask/causal | a causal mask is applied where none was asked for
  sees = visible(causal=True)
if window
each side left right = left 1 0, right 0 1
times said by = fewer -1, more 1
mask/window-{side} | the window reaches one key {said} to the {side}
  sees = visible(window=(window[0] + {by} * {left}, window[1] + {by} * {right}))
if (causal or window) and x.n_query != x.n_key
mask/align | the diagonal ends in the other corner of the scores
  sees = visible(align='top-left' if align == 'bottom-right' else 'bottom-right')
if seqlens is not None
mask/length | padded rows are not masked
  sees = visible(seqlens=None) & (j < n_keys)
mask/length | padded keys are not masked
  sees = visible(seqlens=None) & (i < n_rows)
mask/length | padding is not masked
  sees = visible(seqlens=None)
if mask is not None
mask/mask | the mask that is given is left out
  sees = visible(mask=None)
if {name} is not None
each name = bias, alibi, tau
mask/{name} | {name} is left out
  {name} = {name} * 0.0
if sinks is not None
wrong LSE P O dP dV delta dSink
mask/sinks | the sinks are left out
  sinks = sinks - float('inf')
  LSE = formula
if softcap is not None
mask/softcap | the scores in P are not capped, though dS has the softcap's derivative
  P = P * (scores - softcap * tanh).exp()
mask/softcap | the softcap is left out
  softcap = None
"""

# dBias is 0 at the last distance of a bias that ends early; where that alone is wrong, nothing else was read so.
_BIAS_WINDOWS = """
if has_window and seen.own == ('dBias',) and not bool(seen.actual['dBias'][:, -1].any())
fix compare with distance < window
mask/bias-window | the bias reaches one distance fewer: distance < window - 1
  dBias = {}.where(nearer, 0.0)
if has_window and bias.shape[1] < x.n_key
fix attend to every key j <= i; the window is the bias's
wrong LSE P O dP dV delta dTau
mask/bias-window | the keys beyond the bias's window are left out
  sees = valid & ~beyond
mask/bias-window | the keys beyond the bias's window are left out, in tiles of {n} keys by {m} rows
  sees = valid & (i // {m} * {m} - (j // {n} * {n} + {n} - 1) < x.bias.shape[1])
fix add tl.where(distance < window, bias, 0.0)
wrong LSE P O dP
mask/bias-window | keys beyond the bias's window have the bias of its last distance
  LSE = (s + last_bias).logsumexp(-1)
  P = P * last_bias.exp()
wrong LSE P O dP dBias
or
  dBias = {}.where(nearer, {} + (dS * beyond).sum((-2, -1))[:, None])
"""

_TERMS = """
if True
fix dS = P * (dP - delta)
wrong delta dS
delta/dropped | delta is not subtracted: dS = P * dP
  delta = 0 * delta
delta/sign | delta is added, not subtracted
  delta = -delta
if lazy
fix {due}
wrong delta dS
delta/formula | delta is rowsum(dO * O), which holds tau's share
  delta = (do * (pe @ v)).sum(-1)
if softcap is not None
fix dS = P * (dP - delta) * (1 - tanh(S / softcap)^2)
softcap/derivative | the softcap's derivative is missing in dS
  dS = P * spread
softcap/derivative | the softcap's derivative is 1 - tanh(S)^2, of S not divided by the softcap
  dS = P * spread * (1 - scores.tanh() ** 2)
if keep is not None
dropout/scale | 1 / (1 - p) is missing in dV
  dV = dV * (1 - dropout)
dropout/scale | 1 / (1 - p) is missing in dP
  dP = dP * (1 - dropout)
dropout/scale | 1 / (1 - p) is missing
  O, dV, dP = {} * (1 - dropout)
dropout/dv | dropout is left out of dV: P^T dO of all of P
  dV = product('dV', P)
dropout/dp | dropout is left out of dP
  dP = dpe * valid
"""

_TAUS = """
if tau is not None
fix tau / (i + 1)
wrong O dP delta dV dTau
each by = i+2, i+0, j+1
tau/position | tau is divided by {by}, not i + 1
  O, dV = product('{}', z({by}).relu() * valid)
  dP = dpe * (valid & (z({by}) > 0))
or
  dTau = (dP / ({by})).nan_to_num(posinf=0.0, neginf=0.0).sum((-2, -1))
if tau is not None
fix dP = [P + tau / (i + 1) > 0] * (dO V^T)
wrong O dP delta dV dTau
relu/mask | the ReLU's mask is missing in dP
  dP = dpe * valid
fix relu(P + tau / (i + 1))
wrong
relu/missing | the ReLU is left out
  O, dV = product('{}', z(i + 1) * valid)
fix dTau = sum of dP / (i + 1)
tau/gradient | dTau sums dP without dividing it by i + 1
  dTau = dP.sum((-2, -1))
tau/gradient | dTau sums dP without the ReLU's mask
  dTau = (dpe * valid / (i + 1)).sum((-2, -1))
fix mask relu(P + tau / (i + 1)), and P + tau / (i + 1) > 0
wrong O dV dP dTau
tau/mask | the causal mask is applied before tau is added
  O, dV = product('{}', z(i + 1).relu() * every)
  dP = dpe * (z(i + 1) > 0) * every
tau/mask | the causal mask is applied before tau is added, in visited tiles of {m} rows and {n} keys
  O, dV = product('{}', z(i + 1).relu() * every * tile_sees({m}, {n}))
  dP = dpe * (z(i + 1) > 0) * every * tile_sees({m}, {n})
"""

# P is 1 where LSE is too large for log N to be added.
_DEAD_ROWS = """
if dead
fix DEAD_FIX
each step at = LSE dead[...,0], O dead, P dead
dead/nan | rows that see no key are NaN in {step}, and spread: exp(-inf - -inf), or 0 / 0
  {step} = {step}.masked_fill({at}, nan)
if dead and causal
fix DEAD_FIX
dead/nan | rows that see no key are NaN in P, and spread within tiles of {m} rows and {n} keys
  P = P.masked_fill(dead & tile_sees({m}, {n}), nan)
if dead
fix DEAD_FIX
wrong P O
each of of_p = 1 share(1), 16 share(16), 32 share(32), 64 share(64), 128 share(128), 1 1.0, 16 1.0, 32 1.0, 64 1.0
dead/uniform | rows that see no key weigh every key alike
  O = O.where(~dead, share({of}) * v.sum(-2, keepdim=True))
  P = P.masked_fill(dead, {of_p})
or
  dP = dpe
""".replace("DEAD_FIX", DEAD_FIX)

_SHARES = """
if case.heads > case.kv_heads
fix add every query head of the group once
accumulation/dK | of each group only query head {member} is added to dK and dV
  dK, dV = {} * (member == {member})
if tau is not None
fix tl.atomic_add
accumulation/dTau | dTau holds one program's {n} rows alone: it is stored, not added
  dTau = (dP / (i + 1) * (i >= (n_rows - 1) // {n} * {n}) * (tile.batch == x.n_batch - 1)).sum((-2, -1))
"""

OPERANDS = """
if {meant}.shape[2:] == {other}.shape[2:]
fix multiply by {meant}
each of meant other = dQ k q, dQ k v, dQ k do, dK q k, dK q do, dK q v, dV do q, dV do v, O v k
operand/{of} | {of} is made with {other} in place of {meant}
  {of} = product('{of}', other={other})
if True
fix transpose {matrix} where it is to be
each of matrix other own summed = dQ dS k row key, dK dS q key row, dV P do key row
transposed/{of} | {of} multiplies {other} by a transpose, in tiles of {size}
  {of} = by_tiles('{of}', {other}, {size}, 'hrsji,hsjd->hrid')
fix read {other} at the {summed} of the loop
operand/{of}-row | {of} reads {other} at its own {own}, not at each {summed} summed, in tiles of {size}
  {of} = by_tiles('{of}', {other}, {size}, 'hrsij,hsid->hrid')
if {meant}.shape[-1] == {own}.shape[-1]
fix multiply by {meant}
each of meant own = dQ k q, dK q k, dV do v
operand/{of} | {of} is made with {own} in place of {meant}, tile by tile of {size}
  {of} = by_tiles('{of}', {own}, {size}, 'hrsij,hrjd->hrid')
if shapes.get('{of}') == shapes.get('{other}', 0)
fix return each gradient in its own place
each of other = dQ dK, dQ dV, dK dV
swap/{of}-{other} | {of} and {other} have changed places
  {of} = product('{other}')
  {other} = product('{of}')
if shapes.get('{of}') == shapes.get('{other}', 0) and not seen.wrong('{other}')
fix return each gradient in its own place
each other of = dK dQ, dV dQ, dQ dK, dV dK, dQ dV, dK dV
twice/{other} | {other} stands in the place of {of} too
  {of} = product('{other}')
"""

# Where the scores are off, the gradients are multiplied by the right scale.
FACTORS = """
if scale and case.exists('{step}') and is_new('{step}', {factor})
fix multiply {step} by {inverse}
each step = P, dP, delta, dS, dQ, dK, dV, dBias, dSink, dAlibi, dTau, O
times factor inverse = CONSTANTS
factor/{step} | {step} is off by the factor {factor} throughout
  {step} = {step} * {value}
if scale and is_new('S', {factor})
wrong LSE P O
each factor inverse = CONSTANTS
factor/S | the scores are off by the factor {factor}
  scale = scale * {value}
  dQ = dQ / {value}
  dK = dK / {value}
if True
fix take exp of scores, or exp2 of scores times log2 e = 1.4427
each factor = ln2, log2e
factor/S | P is raised to the power {factor}: exp and exp2 are mixed up
  P = P**{value} * (P > 0)
""".replace("CONSTANTS", _CONSTANTS)

_TILES = """
if True
wrong *
each axis at end = rows i n_rows, keys j n_keys
tile/{first}-last-{axis} | {first} leaves out the {axis} beyond the last whole tile of {n}
  sees = valid & ({at} < {end} // {n} * {n})
accumulation/{first} | {first} has the last tile of {n} {axis} alone: others are overwritten, or not visited
  sees = valid & ({at} >= ({end} - 1) // {n} * {n})
tile/{first}-last-{axis} | {first} leaves out the last tile of {n} {axis}
  sees = valid & ({at} < ({end} - 1) // {n} * {n})
tile/{first}-first-{axis} | {first} leaves out the first {n} {axis}
  sees = valid & ({at} >= {n})
if True
wrong *
tile/{first}-first-rows | {first} skips the first tile of {m} rows that sees each tile of {n} keys
  sees = valid & (i // {m} > of_first_key(first_row, {n}) // {m})
tile/{first}-last-rows | {first} ends with the rows that see the first key of each tile of {n}
  sees = valid & (i // {m} <= (of_first_key(end_row, {n}) - 1) // {m})
tile/{first}-last-keys | {first} ends with the keys that the first row of each tile of {m} sees
  sees = valid & (j // {n} <= (of_row(end_key, {m}, 0) - 1) // {n})
tile/{first}-last-keys | {first} ends one tile of {n} keys before the last that each tile of {m} rows sees
  sees = valid & (j // {n} * {n} < of_row(end_key, {m}, {m} - 1) - {n})
accumulation/{first} | {first} has the last tile of {n} keys that each tile of {m} rows sees: others are lost
  sees = valid & (j // {n} == (of_row(end_key, {m}, {m} - 1) - 1) // {n})
"""

_ROUNDINGS = """
if True
precision/P-dS | each of P and dS is rounded to {dtype} before it is used
  O, dV = product('{}', rounded(pe, '{dtype}'))
  dQ, dK = product('{}', rounded(dS, '{dtype}'))
each sum = dQ, dK, dV
precision/{sum} | the sum of {sum}, after every {n}, is rounded to {dtype} before it is used
  {sum} = rounded_sum('{sum}', {n}, '{dtype}')
each matrix pe results = dS dS dQ,~dK, P pe O,~dV
precision/{matrix} | {matrix} is rounded to {dtype} before it is used
  {results} = product('{}', rounded({pe}, '{dtype}'))
each step = q, k, v, do, P, dP, dS, delta, LSE, O, dQ, dK, dV, dBias
precision/{step} | {step} is rounded to {dtype} before it is used
  {step} = rounded({step}, '{dtype}')
"""

# Of what is read beyond the end some is masked to 0; a load pads keys with 0, as it does their values.
_TAILS = """
if is_bare
fix mask the rows by the length: offs_m < n_ctx
each read = q,do,lse,delta, q,do, q
tail/q | rows beyond the last one, up to a whole tile of {tile}, are added to dK and dV
  dK, dV = {} + tail('rows', {tile}, '{read}')['{}']
fix mask the keys by the length: offs_n < n_ctx
each read = k,v, k
tail/k | keys beyond the last one, up to a whole tile of {tile}, are added to dQ
  dQ = {} + tail('keys', {tile}, '{read}')['{}']
if is_bare
fix mask the scores by the length: tl.where(offs_n < n_ctx, s, -inf)
wrong LSE P O
tail/scores | keys beyond the last one, up to a whole tile of {tile}, count with a score of 0
  LSE = {}.logaddexp(tail('keys', {tile})['{}'])
"""

FORMULAS = _MASKS + _BIAS_WINDOWS + _TERMS + _TAUS + _DEAD_ROWS + _SHARES
SUMS = _TILES + _ROUNDINGS + _TAILS

# What people write in plain Python, where no kernel is launched; of two that give the same numbers the first is told.
PYTHON = """
if python and not lazy and causal
fix mask the scores with -inf
mask/after | P is masked after the softmax
  P = scores.softmax(-1) * valid
fix show j <= i
each mask = j>=i, j>i
mask/inverted | the mask is upside down: it shows {mask}
  sees = every & ({mask})
if python and not lazy
fix take it over the keys
each axis said = -2 the~queries~of~a~key, -3 the~heads
formula/softmax | the softmax is over {said}
  P = s.softmax({axis}).nan_to_num(0.0)
fix divide exp(S) by its sum
each powers = s-s.amax(-1,keepdim=True), s
formula/softmax | exp(S) is not divided by its sum
  P = ({powers}).exp()
if python and abs(scale - D**-0.5) > 1e-9
fix use the scale that is given
wrong LSE P O dQ dK
formula/scale | the scores are scaled by 1 / sqrt(head dim), whatever scale is given
  scale = q.shape[-1] ** -0.5
wrong dQ dK
formula/scale | dQ and dK take 1 / sqrt(head dim), not the scale that is given
  dQ = dQ * q.shape[-1] ** -0.5 / scale
  dK = dK * q.shape[-1] ** -0.5 / scale
if python
fix hand dO to the backward
wrong dP dV delta
each loss factor = O.sum() 1, O.mean() 1/do.numel()
formula/dO | dO is not used: the gradients are those of {loss}
  do = do * 0 + {factor}
if python and {a}.shape == {b}.shape
fix exchange {a} and {b}
wrong LSE P O dP dV delta dQ dK
each a b A B = k v K V, q k Q K
swap/{a}-{b} | the parameter {a} is used as {b}, and {b} as {a}
  {a} = {b}
  {b} = {a}
or
  d{A} = product('d{B}')
  d{B} = product('d{A}')
if python
fix {due}
wrong delta dS
each by said = n_keys keys, valid.sum(-1) keys~that~a~row~sees, do.shape[-1] head~dim
delta/mean | delta is a mean over the {said}, not a sum
  delta = delta / {by}
each line value = dO do, dP dP, P P, O pe@v, dO*dV do*(pe.mT@do), dO*V do*v
delta/formula | rowsum({line}) stands for delta
  delta = ({value}).sum(-1)
each line said = P*dP P~*~dP
delta/formula | colsum({said}) stands for delta
  dS = P * (dP - ({line}).sum(-2, keepdim=True))
"""
