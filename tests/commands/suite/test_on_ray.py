"""A sweep on Ray: on two nodes, with a worker that is killed in the middle, its table is the one without Ray."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from gradprobe.commands.suite.on_ray import EMBEDDED, RayCluster
from gradprobe.model.failures import UsageFailure
from tests.cli.command import ROOT, run, start

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the extra `cluster`"
)

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
# Two heads take long, the first time: the process above the check's own is Ray's worker.
HELD = """
import os, time
from beside import right
def f(q, k, v, do, *, scale):
    with open(os.environ["NODES"], "a") as file:
        print(os.environ.get("RAY_RAYLET_PID", "none"), file=file)
    mark = os.environ["MARK"]
    if q.shape[1] == 2 and mark and not os.path.exists(mark):
        with open(mark, "w") as file:
            file.write(str(os.getppid()))
        time.sleep(600)
    if q.shape[1] == 3:
        do = do * 1.5
    return right(q, k, v, do, scale=scale)
"""
WORDS = "sweep held.py:f --batch 1 --seqlen 9 --head-dim 8 --layout contiguous"
WORDS += " --heads 1 --heads 2 --heads 3 --heads 4"


@pytest.fixture
def targets(folder, monkeypatch):
    (folder / "held.py").write_text(HELD)
    (folder / "beside.py").write_text("from soft import backward as right\n")
    monkeypatch.setenv("NODES", str(folder / "nodes.txt"))
    monkeypatch.setenv("MARK", "")
    return folder


@contextlib.contextmanager
def two_nodes(**environment):
    own = {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    words, pipes = [sys.executable, "-c", CLUSTER], dict.fromkeys(("stdin", "stdout"), -1)
    with subprocess.Popen(words, **pipes, env={**os.environ, **own, **environment}) as cluster:
        try:
            lines = map(bytes.decode, cluster.stdout)
            yield next(line for line in lines if line[0].isdigit()).strip()
        finally:
            cluster.communicate(timeout=60)


def verdicts(folder):
    document = json.loads((folder / "all.json").read_text())
    return [(one["title"], one["verdict"], one["first_mismatch"]) for one in document["reports"]]


def kill_what_holds(mark, within):
    deadline = time.monotonic() + within
    while not mark.exists() or not mark.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(int(mark.read_text()), signal.SIGKILL)


@needs_ray
@pytest.mark.nightly
@pytest.mark.usefixtures("real_processes")
def test_on_two_nodes_the_table_is_the_one_without_ray_but_for_a_check_whose_worker_was_killed_in_every_retry(
    targets,
):
    plain = run(f"{WORDS} --json all.json")
    expected = verdicts(targets)
    (targets / "nodes.txt").unlink()
    for retries in (0, 2):
        mark = targets / f"mark{retries}"
        with two_nodes(MARK=str(mark)) as address:
            words = f"{WORDS} --ray {address} --retries {retries} --json all.json"
            with start(words, GRADPROBE_SHRINK_BUDGET="0", GRADPROBE_FIX_BUDGET="0") as process:
                kill_what_holds(mark, 120)
                out, err = process.communicate(timeout=300)
        assert process.returncode == plain.code == 1, err
        found = verdicts(targets)
        if retries:
            assert found == expected
        else:
            others = [[one for one in each if one[0] != "H=2"] for each in (found, expected)]
            assert others[0] == others[1]
            (lost,) = (line for line in out.decode().splitlines() if line.startswith("  ERROR"))
            assert lost.endswith("the worker of Ray that made it was lost (WorkerCrashedError)")
            assert "1 error" in out.decode().splitlines()[-1]
    raylets = set((targets / "nodes.txt").read_text().split())
    assert len(raylets) == 4, "two of each of two clusters"


def test_without_ray_or_a_cluster_there_it_is_said_before_anything_runs(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    RayCluster(EMBEDDED, 3).refuse_unusable()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        RayCluster(f"ray://{address}", 3).refuse_unusable()
    with pytest.raises(UsageFailure, match=f"--ray {address}: nothing answers there"):
        RayCluster(address, 3).refuse_unusable()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ran = run("sweep soft.py:backward --heads 1 --heads 2 --ray local --workers 1")
    assert (ran.code, ran.out) == (2, "")
    assert "--ray: Ray is not installed here" in ran.err
