"""For a fault of each kind, planted in one line, the edit that undoes it is among the first candidates."""

from itertools import islice

import pytest

from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.rewrites.candidate import Fault
from gradprobe.source.rewrites.candidates import candidates_of
from tests.sampling import sampled
from tests.source.repaired import TEXT

# What 20 s try on two cores of kernels that run in half a second.
FIRST = 60


def faulty(line, right, wrong):
    """TEXT with the fault in the first line from `line` on that has the right words; and that line's number."""
    lines = TEXT.split("\n")
    start = lines.index(line) if line else 0
    number = next(at for at in range(start, len(lines)) if right in lines[at])
    lines[number] = lines[number].replace(right, wrong, 1)
    return "\n".join(lines), number + 1


def bare(text):
    """Without blanks and brackets around a whole side, which an edit may leave."""
    return "".join(text.split()).replace("(", "").replace(")", "")


RIGHT = bare(TEXT)


def texts_of(text, *faults, wanted=(), most=FIRST, **how):
    """The candidates in their order; a number stands for a fault in that line."""
    faults = [Fault(fault) if isinstance(fault, int) else fault for fault in faults]
    found = candidates_of(KernelFile("mine.py", text), faults, wanted, **how)
    return (candidate.text for candidate in islice(found, most))


def place_of(text, *faults, **how):
    found = map(bare, texts_of(text, *faults, **how))
    return next((at for at, each in enumerate(found) if each == RIGHT), None)


def line_of(text, words):
    return text[: text.index(words)].count("\n") + 1


DK = (
    "def bwd_dk(Q, K, V, DO, LSE, Delta, DK, stride_qh, stride_qm, stride_kh, stride_kn, "
    "stride_doh, stride_dom, scale,"
)
FAULTS = [
    ("", "off_h * stride_doh", "off_h * stride_qh"),
    ("", "offs_n[:, None] * stride_kn", "offs_n[:, None] * stride_qm"),
    ("", "LSE + off_h", "Delta + off_h"),
    ("", "offs_m < n_ctx", "offs_m <= n_ctx"),
    ("", "start_m * BLOCK_M", "start_m * BLOCK_N"),
    ("", "range(0, n_ctx, BLOCK_N)", "range(0, n_ctx // BLOCK_N * BLOCK_N, BLOCK_N)"),
    ("", "range(0, n_ctx, BLOCK_N)", "range(BLOCK_N, n_ctx, BLOCK_N)"),
    ("", "start_m * BLOCK_M", "(start_m + 1) * BLOCK_M"),
    ("", "range(0, n_ctx, BLOCK_N)", "range(0, n_ctx - 1, BLOCK_N)"),
    ("", "tl.dot(q, tl.trans(k)) * scale", "tl.dot(q, tl.trans(k))"),
    ("", "tl.exp(s", "tl.exp2(s"),
    ("", "(dp - delta[:, None])", "dp"),
    ("", "dp - delta", "dp + delta"),
    ("", "dq += tl.dot", "dq = tl.dot"),
    ("", "dq *= scale", "dq *= 1.0"),
    ("", "dp = tl.dot(do, tl.trans(v))", "dp = tl.dot(do, tl.trans(v)).to(tl.bfloat16).to(tl.float32)"),
    ("", " & (offs_m[:, None] >= offs_n[None, :])", ""),
    ("", "offs_m[:, None] >= offs_n", "offs_m[:, None] > offs_n"),
    (DK, "mask=offs_n[:, None] < n_ctx", "mask=offs_n[:, None] < n_ctx + 1"),
    (DK, "tl.dot(tl.trans(ds), q)", "tl.dot(tl.trans(ds), do)"),
    (DK, "tl.dot(tl.trans(ds), q)", "tl.dot(ds, q)"),
    (DK, ", dk, mask=offs_n[:, None] < n_ctx)", ", dk)"),
    ("", "torch.zeros_like(q)", "torch.empty_like(q)"),
    ("", "triton.cdiv(n_ctx, 16)", "(n_ctx // 16)"),
    ("", "do.stride(0), do.stride(1), scale", "do.stride(0), q.stride(1), scale"),
]  # fmt: skip


@sampled("start, right, wrong", FAULTS, push=15)
def test_the_edit_that_undoes_a_fault_is_among_the_first(start, right, wrong):
    text, line = faulty(start, right, wrong)
    assert place_of(text, line) is not None


def test_the_words_that_a_hypothesis_gives_come_first():
    text, line = faulty("", "off_h * stride_doh", "off_h * stride_qh")
    assert place_of(text, line, wanted=("do", "h"), most=1) == 0


def test_a_stride_of_the_same_axis_comes_late_where_it_goes_wrong_when_contiguous():
    text, line = faulty("", "off_h * stride_doh", "off_h * stride_qh")
    early, late = (place_of(text, line, contiguous=it, most=None) for it in (False, True))
    assert early < FIRST < late


def test_the_other_sign_comes_before_a_guard_and_first_where_it_is_known():
    text = TEXT.replace("tl.exp(s - lse[:, None])", "tl.exp(s + lse[:, None])")
    line, guards = line_of(text, "tl.exp(s +"), text.count("tl.where(")
    plain = list(texts_of(text, line))
    sign = plain.index(text.replace("tl.exp(s +", "tl.exp(s -", 1))
    assert sign < min(at for at, each in enumerate(plain) if each.count("tl.where(") > guards)
    (turned,) = texts_of(text, Fault(line, is_turned=True), most=1)
    assert "tl.exp(s - lse[:, None])" in turned


HEAD = "import triton\nimport triton.language as tl\n\n@triton.jit\ndef kernel(q_ptr, l_ptr, n, scale):\n"
# Statements, how the one at fault begins, and what stands there when it is mended.
STATEMENTS = {
    "a factor of all of a difference": ("p = tl.exp2((s - l) * scale)", "p =", "p = tl.exp2(s * scale - l)"),
    "a statement in a loop": (
        "for i in range(n):\n    dk += tl.load(q_ptr)\n    dk *= scale", "dk *=",
        "    dk += tl.load(q_ptr)\ndk *= scale",
    ),
    "a factor that grows in a loop": (
        "for i in range(n):\n    scale *= 1.44\n    s = tl.load(q_ptr) * scale", "scale *=",
        "    pass\n    s = tl.load(q_ptr) * (scale * 1.44)",
    ),
    "a term of an index and a stride that nothing reads": (
        "b = tl.program_id(0)\nh = tl.program_id(1)\nstride_h = n * 16\nstride_b = stride_h * n\noffset = h * stride_h",
        "offset =", "offset = h * stride_h + b * stride_b",
    ),
    "two statements of a loop in the wrong order": (
        "q = tl.load(q_ptr)\nfor i in range(n):\n    q = tl.load(q_ptr + i)\n    s += q", "q = tl.load(q_ptr + i)",
        "    s += q\n    q = tl.load(q_ptr + i)",
    ),
}  # fmt: skip


def in_kernel(statements):
    """A kernel of some statements, to which s, l, p, v, acc, fade and dk are known."""
    known = "s = l = p = v = acc = fade = dk = tl.arange(0, 16)\n"
    return HEAD + "".join(f"    {line}\n" for line in (known + statements).split("\n"))


@pytest.mark.parametrize("name", STATEMENTS)
def test_what_stands_in_the_wrong_place_is_moved(name):
    wrong, begins, right = STATEMENTS[name]
    text = in_kernel(wrong)
    lines = [*enumerate(text.split("\n"), 1)]
    line = max(at for at, each in lines if each.strip().startswith(begins))
    mended = in_kernel(right).removeprefix(in_kernel("")[:-5])
    assert any(mended in each for each in texts_of(text, line))


@pytest.mark.parametrize(
    ("statement", "mended"),
    [
        ("w = p + fade[:, None]", "w = tl.where(dist >= 0, p + fade[:, None], 0.0)"),
        ("w = tl.where(p > 0, v, 0.0)", "w = tl.where((p > 0) & (dist >= 0), v, 0.0)"),
    ],
)
def test_what_is_not_masked_gets_the_test_that_hides_its_scores(statement, mended):
    scores = 'dist = n - s\ns = tl.where(dist >= 0, s, float("-inf"))\ns = tl.where(l < n, s, float("-inf"))'
    text = in_kernel(f"{scores}\n{statement}")
    first = texts_of(text, line_of(text, statement), wanted=("where(",), most=3)
    assert any(mended in each for each in first)


HOST = """
def launch(q, k, o, scale, causal):
    B, H, N = q.shape[:3]
    lse = torch.empty((B, H, N), dtype=torch.float32)
    fwd[(triton.cdiv(N, 64), B * H)](q, k, o, lse, scale, CAUSAL=causal)

@triton.jit
def fwd(q, k, o, lse, scale, CAUSAL: tl.constexpr):
    pass
"""
OF_HOSTS = [
    ("B * H)]", "B)]"), ("(triton.cdiv(N, 64), B * H)", "(B * H, triton.cdiv(N, 64))"),
    ("lse, scale, C", "lse, 1.0, C"), ("=causal", "=not causal"), ("q, k, o, lse, s", "q, o, k, lse, s"),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong"), OF_HOSTS)
def test_what_a_launch_is_given_is_among_the_first_of_its_line(right, wrong):
    found = texts_of(HOST.replace(right, wrong, 1), line_of(HOST, "fwd[("))
    assert bare(HOST) in map(bare, found)
