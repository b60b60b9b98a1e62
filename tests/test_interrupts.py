"""Tests of Ctrl-C also run where a shell without job control started all of them."""

import signal
import subprocess
import sys

import pytest

from tests.conftest import heed_interrupts

ASKS = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


@pytest.mark.usefixtures("real_processes")
def test_what_tests_start_heeds_an_interrupt_that_they_themselves_were_to_ignore():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        heed_interrupts()
        asked = subprocess.run(
            [sys.executable, "-c", ASKS], capture_output=True, text=True, check=True
        )
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert asked.stdout == "True\n"
