"""What is to be told of each target of raising_kernels.py, interpreted and compiled."""

from pathlib import Path

KERNELS = Path(__file__).with_name("raising_kernels.py")
CASE = "--batch 1 --heads 2 --seqlen 20 --head-dim 24"
# By target: the function and the beginning of the line that raised, and the same of what called it.
TOLD = {
    "dot": ("dot_kernel", "tl.store(x, tl.sum(tl.dot(a, b)))", "dot", "dot_kernel[(1,)](q, q.shape[2], BLOCK=32)"),
    "calling": ("added", "return offs[:, None] + other", "calling_kernel", "tl.store(x, tl.sum(added("),
    "asserting": ("assert_kernel", "tl.static_assert(BLOCK <= 16)", "asserting", "assert_kernel[(1,)]"),
}  # fmt: skip


def assert_told(target: str, said: str) -> None:
    function, code, caller, called = TOLD[target]
    message, *lines = (line.strip() for line in said.strip().splitlines())
    number, text = _line(f"def {function}(", code)
    assert any(
        line.endswith(f"raising_kernels.py:{number} in {function}: {text}") for line in lines
    ), said
    number_there, text = _line(f"def {caller}(", called)
    assert f"raising_kernels.py:{number}: " in message
    place = f"raising_kernels.py:{number_there} in {caller}: {text}"
    assert any(line.endswith(place) for line in lines), said


def _line(function: str, code: str) -> tuple[int, str]:
    lines = KERNELS.read_text(encoding="utf-8").splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith(function))
    number = next(
        index for index in range(begin, len(lines)) if lines[index].strip().startswith(code)
    )
    return number + 1, lines[number].strip()
