"""Chooses Triton's interpreter before any test imports triton, and one thread: the tensors here are small."""

import compileall
import ctypes
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gradprobe.runtime.backend import prepare_backend
from tests import zygote
from tests.sampling import NIGHT

# What fails here is to fail, and is right soon enough without an edit of it.
os.environ.setdefault("GRADPROBE_FIX_BUDGET", "0")
os.environ.setdefault("GRADPROBE_SHRINK_BUDGET", "0")
# What tests look for in a report may stand anywhere in it; those of one screen take this back.
os.environ.setdefault("GRADPROBE_DETAILS", "1")
# Of glibc's mallopt: from which size on an allocation is pages of its own, and how much that is free is kept.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = 32 << 20  # the most that glibc takes for the second


def pytest_configure(config):
    is_worker = hasattr(config, "workerinput")
    if not is_worker:  # once, and not in each process that tests start: 0.9 s of every check
        compileall.compile_dir(Path(__file__).parents[1] / "gradprobe", quiet=2, workers=2)
    # As a plugin pytest would rewrite the asserts of all of it: 4 s of each worker, in which no test looks.
    getattr(config.pluginmanager.rewrite_hook, "_must_rewrite", set()).discard("gradprobe")
    if is_worker or not config.getoption("numprocesses", None):
        _prepare_tests(config)


def _prepare_tests(config):
    """Of a process that runs tests, and not of one that starts workers for them."""
    heed_interrupts()
    prepare_backend("auto")
    import torch

    torch.set_num_threads(1)
    # What pytest rewrites of gradprobe, 3 s of each program of pytest's that tests start, they are to keep.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    gc.disable()  # what comes of collection stays to the end
    _keep_freed_pages()
    if _on_push(config) and not torch.cuda.is_available():  # which a fork cannot use
        zygote.install()


def heed_interrupts():
    """What a shell without job control starts in the background ignores Ctrl-C, and so does all that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _on_push(config):
    return not NIGHT and config.getoption("markexpr") == "not nightly"


def _keep_freed_pages():
    """Otherwise every array above 128 KB has its pages mapped and cleared anew, which is a fifth of what it costs."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT)
        mallopt(_M_TRIM_THRESHOLD, 8 * _KEPT)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """What a worker has left the others take: a few tests are as long as hundreds of others."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(autouse=True)
def _own_search_path(monkeypatch):
    """A target's folder is put on the search path, where another test's target of the same name would be found."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def real_processes(monkeypatch):
    """Every program is started as a user's is, by a new interpreter."""
    monkeypatch.setattr(subprocess, "Popen", zygote.RealPopen)


@pytest.fixture
def on_push(pytestconfig):
    """Whether the tests of a push run, and not all of them."""
    return _on_push(pytestconfig)


@pytest.fixture
def without_causes(request, monkeypatch):
    """On a push no check of this process asks why it fails, half of its time: for files of tests of all else."""
    from gradprobe.diagnosis import why

    if _on_push(request.config) and "with_causes" not in request.fixturenames:
        monkeypatch.setattr(why, "EXPLAINERS", (lambda *failed: [], *why.EXPLAINERS[1:]))


@pytest.fixture
def with_causes():
    """For the test of such a file that needs them."""


def pytest_terminal_summary(terminalreporter):
    """The figures that tests came to, also those of other processes."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "figure":
                terminalreporter.write_line(value)


def pytest_collection_modifyitems(items):
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
