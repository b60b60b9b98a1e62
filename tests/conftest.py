"""Chooses Triton's interpreter before any test imports triton, and one thread: the tensors here are small."""

import compileall
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradprobe.processes import forks
from gradprobe.runtime.backend import prepare_backend
from tests import zygote
from tests.sampling import NIGHT

# What fails here is to fail, and is right soon enough without an edit of it.
os.environ.setdefault("GRADPROBE_FIX_BUDGET", "0")
prepare_backend("auto")


def pytest_configure(config):
    import torch

    torch.set_num_threads(1)
    if not hasattr(config, "workerinput"):  # once, and not in each process that tests start: 0.9 s of every check
        compileall.compile_dir(Path(__file__).parents[1] / "gradprobe", quiet=2)
    if hasattr(config, "workerinput"):  # the other workers have the other cores: a fork beside it would only cost
        forks.CROWDED.add(os.getpid())
    on_push = not NIGHT and config.getoption("markexpr") == "not nightly"
    starts_workers = not hasattr(config, "workerinput") and bool(config.getoption("numprocesses", None))
    if on_push and not starts_workers and not torch.cuda.is_available():  # which a fork cannot use
        zygote.install()


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
