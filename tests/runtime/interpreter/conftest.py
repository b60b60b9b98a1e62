"""Every kernel runs in an interpreter whose scalars are right, as in a check."""

import pytest

from gradprobe.runtime import interpreter


@pytest.fixture(autouse=True, scope="session")
def scalars():
    interpreter.make_scalars_right()
