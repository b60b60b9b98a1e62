"""What people write in plain Python in the place of a formula, as rows: `table.rows_of` says how they are written.

They are tried of targets that launch no kernel. Of two that give the same numbers the first is told.
"""

from __future__ import annotations

PYTHON = """
if not lazy and causal
fix mask the scores with -inf
mask/after | the mask is laid over P after the softmax
  P = scores.softmax(-1) * valid
fix show j <= i
each mask = j>=i, j>i
mask/inverted | the mask is upside down: it shows {mask}
  sees = every & ({mask})
if not lazy
fix take it over the keys
each axis said = -2 the~queries~of~a~key, -3 the~heads
formula/softmax | the softmax is over {said}
  P = s.softmax({axis}).nan_to_num(0.0)
fix divide exp(S) by its sum
each powers = s-s.amax(-1,keepdim=True), s
formula/softmax | exp(S) is not divided by its sum
  P = ({powers}).exp()
if abs(scale - D**-0.5) > 1e-9
fix use the scale that is given
wrong LSE P O dQ dK
formula/scale | the scores are scaled by 1 / sqrt(head dim), whatever scale is given
  scale = q.shape[-1] ** -0.5
wrong dQ dK
formula/scale | the scale that is given is not used in dQ and dK, but 1 / sqrt(head dim)
  dQ = dQ * q.shape[-1] ** -0.5 / scale
  dK = dK * q.shape[-1] ** -0.5 / scale
if True
fix hand dO to the backward
wrong dP dV delta
each loss factor = O.sum() 1, O.mean() 1/do.numel()
formula/dO | dO is not used: the gradients are those of {loss}
  do = do * 0 + {factor}
if {a}.shape == {b}.shape
fix exchange {a} and {b} in its signature, or where they are used
wrong LSE P O dP dV delta dQ dK
each a b A B = k v K V, q k Q K
swap/{a}-{b} | the parameter {a} is used as {b}, and {b} as {a}
  {a} = {b}
  {b} = {a}
or
  d{A} = product('d{B}')
  d{B} = product('d{A}')
if True
fix {due}
wrong delta dS
each by said = n_keys keys, valid.sum(-1) keys~that~a~row~sees, do.shape[-1] head~dim
delta/mean | delta is a mean over the {said}, where the sum is meant
  delta = delta / {by}
each line value = dO do, dP dP, P P, O pe@v
delta/formula | rowsum({line}) stands for delta
  delta = ({value}).sum(-1)
each line said = P*dP P~*~dP, dP dP
delta/formula | colsum({said}) stands for delta
  delta = ({line}).sum(-2)
delta/formula | colsum({said}) stands for delta
  dS = P * (dP - ({line}).sum(-2, keepdim=True))
"""
