"""What NVRTC prints of a source that does not compile, as gradprobe says it."""

from gradprobe.frontends.cuda.source import compile_errors

LOG = """/kernels/flash.cu(311): error: class "BackwardTiles" has no member "nothing"
                  const float dt = p * (dp - tile.nothing[i]);
                                                  ^

/kernels/flash.cu(320): warning #177-D: variable "unused" was declared but never referenced
/kernels/tiles.cuh(12): catastrophic error: cannot open source file "missing.cuh"
  #include "missing.cuh"

2 errors detected in the compilation of "/kernels/flash.cu".
"""


def test_errors_have_the_files_own_lines_and_warnings_are_left_out():
    assert compile_errors(LOG) == (
        'flash.cu:311: class "BackwardTiles" has no member "nothing"; '
        'tiles.cuh:12: cannot open source file "missing.cuh"'
    )


def test_what_has_no_line_is_given_as_it_is():
    assert compile_errors("\nnvrtc: error: invalid value for --gpu-architecture\n") == (
        "nvrtc: error: invalid value for --gpu-architecture"
    )


def test_of_many_errors_the_first_three_are_told():
    log = "".join(f'a.cu({line}): error: expected a ";"\n' for line in range(1, 8))
    assert compile_errors(log) == "; ".join(f'a.cu:{line}: expected a ";"' for line in (1, 2, 3))
