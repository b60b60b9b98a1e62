"""Ten faults of kinds that no hypothesis is about, in three kernels that are in no way like those of the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.planted.planting import Edit, edited

# Of each file: the function that is checked, and the smallest case that shows its faults.
_SMALL = {"batch": 1, "heads": 2, "head_dim": 16}
STRANGERS: dict[str, tuple[str, dict[str, Any]]] = {
    "one_pass": ("one_pass", _SMALL | {"seqlen": 76, "causal": True}),
    "blocks": (
        "blocks",
        _SMALL | {"seqlen": 40, "causal": True, "softcap": 2.0, "shapes": "blhd"},
    ),
    "grouped": ("grouped", _SMALL | {"heads": 4, "kv_heads": 2, "seqlen_q": 60, "seqlen_k": 44}),
}


@dataclass(frozen=True)
class Strange:
    """One fault, and where a person would mend it."""

    name: str
    of: str
    """One of STRANGERS."""
    edit: Edit
    statements: tuple[str, ...]
    """How each statement begins that the fault is in; of two in the wrong order, both; of one that is missing, its
    neighbours and what then reads the wrong thing."""

    @property
    def function(self) -> str:
        return STRANGERS[self.of][0]

    @property
    def options(self) -> dict[str, Any]:
        return STRANGERS[self.of][1]

    def plant(self) -> str:
        """The file's source with the fault in it."""
        return edited(file_of(self.of).read_text(), (self.edit,))

    @property
    def mended(self) -> list[str]:
        """The file's source without the fault, in each way that comes to the same."""
        ways = [AS_RIGHT[self.name]] if self.name in AS_RIGHT else []
        return [file_of(self.of).read_text(), *(edited(self.plant(), (way,)) for way in ways)]

    @property
    def lines(self) -> frozenset[int]:
        """Every line of those statements in the source with the fault."""
        source = self.plant()
        start = source.index(f"def {self.edit.kernel}(")
        found: set[int] = set()
        for statement in self.statements:
            at = source.index(statement, start)
            first = source.count("\n", 0, at) + 1
            found |= set(range(first, first + statement.count("\n") + 1))
        return frozenset(found)


def file_of(name: str) -> Path:
    """The file of one of STRANGERS."""
    return Path(__file__).with_name(f"{name}.py")


_NEXT_Q = "        q = _tile(q_ptr, rows + ROWS, q_l, q_d, length, dim, DIM)\n"
_NEXT_DO = "        do = _tile(do_ptr, rows + ROWS, do_l, do_d, length, dim, DIM)\n"
_DV = '        dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")\n'
_ADVANCED = "        Q += qh\n        G += gh\n        L += n_q\n        Delta += n_q\n"
_DIAGONAL = """\
            dk, dv = _add_rows(
                dk, dv, k, v, j, start_m, q_ptr, do_ptr, lse_ptr, delta_ptr, q_l, q_d, do_l, do_d, length, width, scale,
                cap, CAUSAL=True, CAPPED={}, WIDTH=WIDTH, M=M,
            )"""

# What is as right as the file itself.
AS_RIGHT = {
    "dv_takes_do_of_the_next_tile": Edit("one_pass_backward", _NEXT_DO + _DV, _DV + _NEXT_DO)
}

FAULTS = (
    Strange("dv_takes_do_of_the_next_tile", "one_pass",
        Edit("one_pass_backward", _DV + _NEXT_Q + _NEXT_DO, _NEXT_Q + _NEXT_DO + _DV),
        (_NEXT_DO.strip(), _DV.strip())),
    Strange("lse_in_log2_scaled_with_the_scores", "one_pass",
        Edit("_of_tile", "tl.exp2(s * scale2 - lse[:, None])", "tl.exp2((s - lse[:, None]) * scale2)"),
        ("p = tl.exp2(",)),
    Strange("sum_not_rescaled_in_whole_tiles", "one_pass",
        Edit("_absorb", "acc=acc * fade[:, None], input", "acc=acc, input"), ("acc = tl.dot(p.to(v.dtype), v, acc",)),
    Strange("ds_scaled_twice_on_the_diagonal", "one_pass",
        Edit("_of_tile", "ds = tl.where(seen, ds, 0.0)", "ds = tl.where(seen, ds * scale2, 0.0)"),
        ("ds = tl.where(",)),
    Strange("softcap_off_by_its_flag_on_the_diagonal", "blocks",
        Edit("blocks_dkdv", _DIAGONAL.format("CAPPED"), _DIAGONAL.format("False")),
        (_DIAGONAL.format("False").strip(),)),
    Strange("softcap_derivative_of_the_third_power", "blocks",
        Edit("_scores", "slope = 1.0 - t * t", "slope = 1.0 - t * t * t"), ("slope = 1.0 -",)),
    Strange("p_and_dp_swapped_in_one_call", "blocks",
        Edit("blocks_dq", "_through_softmax(p, dp, delta)", "_through_softmax(dp, p, delta)"),
        ("ds = _through_softmax(",)),
    Strange("delta_of_the_first_head_of_the_group", "grouped",
        Edit("grouped_dkdv", _ADVANCED, _ADVANCED.replace("        Delta += n_q\n", "")),
        ("Q += qh\n        G += gh\n        L += n_q", "less = tl.zeros([T, T], tl.float32) - _vector(Delta")),
    Strange("dk_scaled_once_for_each_head_of_the_group", "grouped",
        Edit("grouped_dkdv", _ADVANCED + "    dk *= scale\n", _ADVANCED + "        dk *= scale\n"), ("dk *= scale",)),
    Strange("rows_of_do_masked_by_the_number_of_keys", "grouped",
        Edit("grouped_dkdv", "g = _matrix(G, i, d, gi, gd, n_q, n_d)", "g = _matrix(G, i, d, gi, gd, n_k, n_d)"),
        ("g = _matrix(G",)),
)  # fmt: skip
