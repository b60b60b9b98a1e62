"""What is to be told of each target of raising_kernels.py, interpreted and compiled."""

from pathlib import Path

KERNELS = Path(__file__).with_name("raising_kernels.py")
CASE = "--batch 1 --heads 2 --seqlen 20 --head-dim 24"
# By target: the function and the beginning of the line that raised, what else is told, and the same of what called it.
TOLD = {
    "undefined": (
        "undefined_kernel", "tl.store(x + offs, scal", ["offs int32[32]"], "undefined",
        "undefined_kernel[(1,)]",
    ),
    "dot": (
        "dot_kernel", "tl.store(x, tl.sum(tl.dot(a, b)))", ["a fp32[32, 16]", "b fp32[32, 32]"],
        "dot", "dot_kernel[(1,)](q, q.shape[2], BLOCK=32)",
    ),
    "arange": (
        "arange_kernel", "offs = tl.arange(0, HEAD)", ["HEAD = 24"], "arange",
        "arange_kernel[(1,)]",
    ),
    "calling": (
        "added", "return offs[:, None] + other", ["offs int32[32]", "other int32[8, 4]"],
        "calling_kernel", "tl.store(x, tl.sum(added(",
    ),
    "asserting": (
        "assert_kernel", "tl.static_assert(BLOCK <= 16)", ["BLOCK = 32"], "asserting",
        "assert_kernel[(1,)]",
    ),
    "missing": (
        "missing", "dot_kernel[(1,)](q, q.shape[2])", ["q float32[1, 2, 20, 24]"], "", "",
    ),
    "wrapper": (
        "wrapper", 'return {"dQ"', ["do float32[1, 2, 20, 24]", "rows = 20", "wide = 24.0"], "",
        "",
    ),
}  # fmt: skip


def assert_told(target: str, said: str) -> None:
    """Holds what was said of a target to what is to be told."""
    function, code, pieces, caller, called = TOLD[target]
    message, *lines = (line.strip() for line in said.strip().splitlines())
    assert [piece for piece in pieces if piece not in lines] == [], said
    number, text = _line(f"def {function}(", code)
    at = next((index for index, line in enumerate(lines) if line.endswith(text)), -1)
    place = f"raising_kernels.py:{number} in {function}"
    assert lines[at - 1].endswith(place), said
    if caller:
        number_there, text = _line(f"def {caller}(", called)
        assert f"raising_kernels.py:{number}: " in message
        assert any(
            line.endswith(f"raising_kernels.py:{number_there} in {caller}: {text}")
            for line in lines
        ), said


def _line(function: str, code: str) -> tuple[int, str]:
    """The number and text of the first line of a function that begins with the code."""
    lines = KERNELS.read_text(encoding="utf-8").splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith(function))
    number = next(
        index for index in range(begin, len(lines)) if lines[index].strip().startswith(code)
    )
    return number + 1, lines[number].strip()
