"""What a report keeps of the source that it accuses is the function of each line, and nothing of what has changed."""

from gradprobe.model.report import CauseLine, Listing
from gradprobe.source.kernel_file import AROUND, listings_of

KERNEL = """import triton

@triton.jit
def one(x):
    y = x * 2
    return y

def two(x):
    return x
"""


def test_the_functions_of_two_lines_are_kept_each_once_with_what_stands_above_def(tmp_path):
    file = tmp_path / "k.py"
    file.write_text(KERNEL)
    wheres = [
        CauseLine(str(file), 5, "y = x * 2"),
        CauseLine(str(file), 6, "return y"),
        CauseLine(str(file), 9, "return x"),
    ]
    lines = KERNEL.splitlines()
    assert listings_of(wheres) == (
        Listing(str(file), 3, tuple(lines[2:6])),
        Listing(str(file), 8, tuple(lines[7:9])),
    )


def test_of_a_line_that_reads_otherwise_now_and_of_a_file_that_is_gone_nothing_is(tmp_path):
    file = tmp_path / "k.py"
    file.write_text(KERNEL)
    gone = CauseLine(str(tmp_path / "gone.py"), 5, "y = x * 2")
    assert (
        listings_of([CauseLine(str(file), 5, "y = x * 3"), CauseLine(str(file), 99, "y"), gone])
        == ()
    )
