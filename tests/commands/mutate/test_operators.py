"""What each operator plants: where, how often in gradprobe's own kernels, and always one line of Python."""

import ast

import pytest

from gradprobe.commands.mutants import CLASSES, mutants_of, read_file
from tests.planted.planting import KERNELS

HEAD = """import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, q_ptr, do_ptr, stride_qh, stride_qm, stride_doh, stride_dom, seen_ptr, scale, delta, n_heads, n_ctx,
           window, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    h = tl.program_id(0)
    offs_m = tl.arange(0, BLOCK_M)
    dq = tl.zeros([BLOCK_M], tl.float32)
"""


def of_text(folder, text, function=None):
    path = folder / "written.py"
    path.write_text(text)
    return read_file(path, function)


def of_line(folder, line):
    """The mutants of a line behind HEAD, as (operator, the line with the fault)."""
    body = "".join(f"    {part}\n" for part in line.splitlines())
    last = len((HEAD + body).splitlines())
    found = mutants_of(of_text(folder, HEAD + body))
    return [(mutant.operator, mutant.after) for mutant in found if mutant.line == last]


def test_every_mutant_is_python_and_differs_in_the_line_that_it_says_alone_and_every_class_has_one():
    file = read_file(KERNELS / "lazy.py", "lazy_intermediates")
    mutants = mutants_of(file)
    planted = {mutant.fault_class for mutant in mutants}
    assert planted == set(CLASSES) - {"RACE"}  # the file has no barrier
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    places = {node.name: (node.lineno - 1, node.end_lineno) for node in file.functions}
    for mutant in mutants:
        before, lines = file.text.split("\n"), mutant.plant(file.text).split("\n")
        pairs = enumerate(zip(before, lines, strict=True), 1)
        assert [at for at, (old, new) in pairs if old != new] == [mutant.line]
        assert lines[mutant.line - 1].strip() == mutant.after != mutant.before
        first, end = places[mutant.function]  # no function here lies in another
        ast.parse("\n".join(lines[first:end]))
        assert len(mutant.diff.splitlines()) == 5


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("p = do_ptr + h * stride_doh", [
            ("another-stride", "p = do_ptr + h * stride_qh"), ("term-dropped", "p = do_ptr"),
        ]),
        ("b, m = h // n_heads, h // BLOCK_N", [
            ("divisions-mixed-up", "b, m = h % n_heads, h // BLOCK_N"),
            ("blocks-mixed-up", "b, m = h // n_heads, h // BLOCK_M"),
        ]),
        ("x = h.to(tl.int64)", [("wide-offset-dropped", "x = h")]),
        ("h = tl.multiple_of(h, BLOCK_N)", []),  # a hint changes nothing
        ("seen = (offs_m >= h) & (offs_m < window)", [
            ("bound-off-by-one", "seen = (offs_m > h) & (offs_m < window)"),
            ("bound-off-by-one", "seen = (offs_m >= h) & (offs_m <= window)"),
            ("operand-dropped", "seen = offs_m < window"), ("operand-dropped", "seen = offs_m >= h"),
        ]),
        ("x = tl.where(m == float('-inf'), 0.0, m)", [("guard-dropped", "x = m")]),
        ("x = tl.where(seen, f(x), float('-inf'))", [("guard-dropped", "x = f(x)")]),
        ("x = tl.load(x_ptr, mask=seen, other=0.0)", [
            ("mask-dropped", "x = tl.load(x_ptr, mask=None, other=None)"),
            ("padding-changed", "x = tl.load(x_ptr, mask=seen, other=1.0)"),
        ]),
        ("for m in range(h * 2, n_ctx + 1, BLOCK_N): pass", [
            ("range-cut", "for m in range(h * 2 + BLOCK_N, n_ctx + 1, BLOCK_N): pass"),
            ("range-cut", "for m in range(h * 2, (n_ctx + 1) // BLOCK_N * BLOCK_N, BLOCK_N): pass"),
            ("blocks-mixed-up", "for m in range(h * 2, n_ctx + 1, BLOCK_M): pass"),
        ]),
        ("n = tl.cdiv(n_ctx, 32)", [("last-tile-lost", "n = n_ctx // 32")]),
        ("x = (dq) * scale", [("factor-dropped", "x = dq")]),
        ("ds = p * (dp - delta[:, None])", [
            ("subtrahend-changed", "ds = p * (dp)"), ("subtrahend-changed", "ds = p * (dp + delta[:, None])"),
        ]),
        ("x = 1 + tl.exp2(x)", [("other-base", "x = 1 + tl.exp(x)")]),
        ("x = f(tl.trans(k), k.T)", [
            ("transpose-dropped", "x = f(k, k.T)"), ("transpose-dropped", "x = f(tl.trans(k), k)"),
        ]),
        ("for _ in range(2):\n    dq += x", [("sum-overwritten", "dq = x")]),
        ("dq += x", []), ("p = do_ptr + offs_m * stride_dom", [("another-stride", "p = do_ptr + offs_m * stride_qm")]),
        ("x = tl.load(x_ptr, mask=seen,\n            other=0.0)", [("padding-changed", "other=1.0)")]),
        ("tl.atomic_add(x_ptr, x)", [("atomic-stored", "tl.store(x_ptr, x)")]),
        ("tl.debug_barrier()", [("barrier-dropped", "pass")]),
        ("x = tl.dot(q, k)", [("rounded-early", "x = tl.dot(q, k).to(tl.bfloat16).to(tl.float32)")]),
        ("é = do_ptr + h * stride_doh  # é", [
            ("another-stride", "é = do_ptr + h * stride_qh  # é"), ("term-dropped", "é = do_ptr  # é"),
        ]),
    ],
)  # fmt: skip
def test_a_line_holds_these_faults_and_no_others(tmp_path, line, expected):
    assert of_line(tmp_path, line) == expected


def test_a_launch_is_given_the_strides_of_another_tensor_and_memory_that_nobody_wrote(tmp_path):
    host = "def run(q, do):\n    dq = torch.zeros(q.shape)\n    kernel[(1,)](q, do, *q.stride(), do.stride(1))\n"
    found = [one for one in mutants_of(of_text(tmp_path, HEAD + host)) if one.function == "run"]
    assert [(one.operator, one.after) for one in found] == [
        ("other-tensors-strides", "kernel[(1,)](q, do, *do.stride(), do.stride(1))"),
        ("other-tensors-strides", "kernel[(1,)](q, do, *q.stride(), q.stride(1))"),
        ("zeros-not-written", "dq = torch.empty(q.shape)"),
    ]


def test_only_what_the_target_s_function_reaches_holds_faults(tmp_path):
    text = """
@triton.jit
def used(x_ptr, n): tl.store(x_ptr, 0.0, mask=n < 3)

@triton.jit
def unused(x_ptr, n): tl.store(x_ptr, 0.0, mask=n < 3)

class Attention:
    def backward(self): used[(1,)]()

def attention(q): return Attention.apply(q)
"""
    for function in ("attention", None, "elsewhere"):
        found = {mutant.function for mutant in mutants_of(of_text(tmp_path, text, function))}
        assert found == ({"used"} if function == "attention" else {"used", "unused"})
