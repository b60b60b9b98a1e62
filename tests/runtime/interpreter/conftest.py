"""Every kernel runs in an interpreter whose scalars are right, as in a check."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def scalars():
    # It imports Triton, whose interpreter is chosen before that; this file may be loaded still sooner.
    from gradprobe.frontends.triton import interpreter

    interpreter.mend_interpreter()
