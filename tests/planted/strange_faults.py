"""Ten faults of kinds that no hypothesis is about, in three kernels that are in no way like those of the package."""

from tests.planted.planting import UNCOVERED, Edit, Planted, edited, file_of


def strange(name: str, of: str, edit: Edit, statements: tuple[str, ...]) -> Planted:
    return Planted(name, of, (edit,), kind=UNCOVERED, statements=statements)


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

STRANGE_FAULTS = (
    strange("dv_takes_do_of_the_next_tile", "one_pass",
        Edit("one_pass_backward", _DV + _NEXT_Q + _NEXT_DO, _NEXT_Q + _NEXT_DO + _DV),
        (_NEXT_DO.strip(), _DV.strip())),
    strange("lse_in_log2_scaled_with_the_scores", "one_pass",
        Edit("_of_tile", "tl.exp2(s * scale2 - lse[:, None])", "tl.exp2((s - lse[:, None]) * scale2)"),
        ("p = tl.exp2(",)),
    strange("sum_not_rescaled_in_whole_tiles", "one_pass",
        Edit("_absorb", "acc=acc * fade[:, None], input", "acc=acc, input"), ("acc = tl.dot(p.to(v.dtype), v, acc",)),
    strange("ds_scaled_twice_on_the_diagonal", "one_pass",
        Edit("_of_tile", "ds = tl.where(seen, ds, 0.0)", "ds = tl.where(seen, ds * scale2, 0.0)"),
        ("ds = tl.where(",)),
    strange("softcap_off_by_its_flag_on_the_diagonal", "blocks",
        Edit("blocks_dkdv", _DIAGONAL.format("CAPPED"), _DIAGONAL.format("False")),
        (_DIAGONAL.format("False").strip(),)),
    strange("softcap_derivative_of_the_third_power", "blocks",
        Edit("_scores", "slope = 1.0 - t * t", "slope = 1.0 - t * t * t"), ("slope = 1.0 -",)),
    strange("p_and_dp_swapped_in_one_call", "blocks",
        Edit("blocks_dq", "_through_softmax(p, dp, delta)", "_through_softmax(dp, p, delta)"),
        ("ds = _through_softmax(",)),
    strange("delta_of_the_first_head_of_the_group", "grouped",
        Edit("grouped_dkdv", _ADVANCED, _ADVANCED.replace("        Delta += n_q\n", "")),
        ("Q += qh\n        G += gh\n        L += n_q", "less = tl.zeros([T, T], tl.float32) - _vector(Delta")),
    strange("dk_scaled_once_for_each_head_of_the_group", "grouped",
        Edit("grouped_dkdv", _ADVANCED + "    dk *= scale\n", _ADVANCED + "        dk *= scale\n"), ("dk *= scale",)),
    strange("rows_of_do_masked_by_the_number_of_keys", "grouped",
        Edit("grouped_dkdv", "g = _matrix(G, i, d, gi, gd, n_q, n_d)", "g = _matrix(G, i, d, gi, gd, n_k, n_d)"),
        ("g = _matrix(G",)),
)  # fmt: skip


def mended(fault: Planted) -> list[str]:
    """The file's source without the fault, in each way that comes to the same."""
    ways = [AS_RIGHT[fault.name]] if fault.name in AS_RIGHT else []
    return [file_of(fault.of).read_text(), *(edited(fault.plant(), (way,)) for way in ways)]
