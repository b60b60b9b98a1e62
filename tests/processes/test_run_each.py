import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradprobe.processes import each, run_each
from gradprobe.processes.resource_limits import gpus
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("real_processes")
ROOT = Path(__file__).resolve().parents[2]
DOING = "tests.processes.workers:Doing"


def ended(*items, setup="set up", **how):
    return list(run_each(DOING, setup, items, **how))


def lives(number):
    """Whether a process runs; one that is over and not waited for does not."""
    try:
        return "Z" not in Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def gone(number, within=5.0):
    deadline = time.monotonic() + within
    while lives(number) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not lives(number)


def test_results_come_in_order_from_one_worker_that_is_made_once():
    ends = ended(("twice", 3), ("twice", 4), ("twice", 5))
    assert [(end.index, end.item, end.result[:3]) for end in ends] == [
        (0, ("twice", 3), (6, "set up", 1)),
        (1, ("twice", 4), (8, "set up", 2)),
        (2, ("twice", 5), (10, "set up", 3)),
    ]
    assert {(end.crash, end.raised) for end in ends} == {(None, None)}
    assert len({end.result[3] for end in ends}) == 1
    assert os.getpid() != ends[0].result[3]


@pytest.mark.nightly
def test_where_there_are_several_gpus_each_child_sees_one(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    items = [
        ("seeing", 0.1, "lives"),
        ("seeing", 0.1, "killed"),
        *[("seeing", 1.5, "lives")] * 3,
    ]
    seen = [end.result for end in ended(*items, workers=2)]
    assert {one for one in seen if one} == {("3", "2"), ("5", "2")}
    assert {one[0] for one in seen[-3:]} == {"3", "5"}  # one in the place of what was killed
    assert [end.result for end in ended(items[0])] == [("3, 5", "1")]


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ("0", "1")), ("", ()), ("-1", ()), ("0", ("0",)), ("GPU-8a, 1", ("GPU-8a", "1"))],
)
def test_gpus_are_told_without_a_driver(visible, names, monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for name in ("0000:17:00.0", "0000:65:00.0"):
        (tmp_path / name).mkdir()
    assert gpus(tmp_path) == names
    assert visible is not None or gpus(tmp_path / "none") == ()


KILLED = "killed by SIGKILL (from outside; most often the system was out of memory)"
CLOSED = "closed the stream that it answers on, or wrote on it"
CRASHES = [
    (("segfault",), "killed by SIGSEGV (segmentation fault)"),
    (("leave", 5), "ended with exit code 5 before it answered (os._exit?)"),
    (("kill", signal.SIGKILL), KILLED),
    (("kill", signal.SIGRTMIN + 3), f"killed by signal {signal.SIGRTMIN + 3}"),
    (("becoming", "sleep", "600"), CLOSED),
    (("writing", b"hello, world"), CLOSED),
    (("writing", b"\0\0\0\x7f"), CLOSED),
    (("closing",), "ended with exit code 1 before it answered (os._exit?)"),
]


def test_a_crash_is_the_end_of_its_item_alone_and_another_child_takes_its_place():
    before, *crashed, after = ended(
        ("twice", 1), *(item for item, _ in CRASHES), ("twice", 2), timeout=20
    )
    assert [(end.item, end.crash.kind, end.crash.words) for end in crashed] == [
        (item, "Crash", words) for item, words in CRASHES
    ]
    assert {(end.result, end.raised) for end in crashed} == {(None, None)}
    assert all(0 <= end.crash.seconds < 20 for end in crashed)
    assert (before.result[0], after.result[0], after.result[2]) == (2, 4, 1)
    segfault, closed = crashed[0].crash, crashed[-1].crash
    assert segfault.stderr_tail == "about to read address 0"
    assert segfault.stack.startswith("Fatal Python error: Segmentation fault")
    assert (segfault.last.function, segfault.last.code) == ("segfault", "ctypes.string_at(0)")
    assert segfault.where.endswith(
        f"workers.py:{segfault.last.line} in segfault: ctypes.string_at(0)"
    )
    assert "Bad file descriptor" in closed.stderr_tail


def test_a_process_that_lost_its_device_is_replaced_whatever_its_worker_made_of_that():
    losing = [("lose_the_device", raised) for raised in ("", "Triton Error: misaligned address")]
    before, *lost, after = ended(("twice", 1), *losing, ("twice", 2))
    for end in lost:
        assert (end.result, end.raised) == (None, None)
        crash = end.crash
        assert (crash.kind, crash.words) == ("DeviceLost", "CUDA error: misaligned address")
    assert (before.result[0], after.result[0], after.result[2]) == (2, 4, 1)


def test_a_process_that_takes_more_memory_than_its_share_is_stopped_and_replaced(monkeypatch):
    monkeypatch.setenv("GRADPROBE_MAX_MEMORY", "1G")
    before, large, after = ended(("its_limit",), ("take", 3 << 29), ("twice", 2))
    assert before.result == 1 << 30
    assert (large.crash.kind, large.crash.words) == (
        "NoRoom", "stopped when it took more than 1.0 GiB of memory (--max-memory)"
    )  # fmt: skip
    assert large.crash.seconds < 10
    assert after.result[0] == 4


@sampled("what", ["hang_in_c", "hang"], push=1)
def test_a_hang_is_stopped_after_the_timeout_and_says_where_it_was(what):
    start = time.monotonic()
    before, hung, after = ended(("twice", 1), (what,), ("twice", 2), timeout=1.0)
    assert time.monotonic() - start < 20
    assert (hung.crash.kind, hung.crash.words) == ("Timeout", "no answer within 1 s: stopped")
    assert 1.0 <= hung.crash.seconds < 5
    assert hung.crash.last.function == what
    assert (before.result[0], after.result[0]) == (2, 4)


def test_what_a_target_prints_goes_neither_to_stdout_nor_into_a_result_of_64_mib(capfd):
    printed, huge, after = ended(
        ("printing", 20_000), ("huge", 64 << 20), ("twice", 2), timeout=60
    )
    assert (printed.result, after.result[0]) == (20_000, 4)
    assert huge.result == b"x" * (64 << 20)
    assert capfd.readouterr() == ("", "")


def test_an_exception_comes_back_with_its_traceback_and_the_child_lives_on():
    raised, left, unpicklable, after = ended(
        ("raising", "no such luck"), ("sys_exit", 0), ("unpicklable",), ("twice", 2)
    )
    assert raised.crash is None
    assert "ValueError: no such luck" in raised.raised.message
    assert "in raising" in raised.raised.traceback
    assert (left.raised.message, left.raised.exit_code) == ("the target raised SystemExit: 0", 3)
    assert "cannot pickle" in unpicklable.raised.message
    assert after.result[2] == 4


UNMADE = "tests.processes.workers:Unmade"


@pytest.mark.parametrize(("how", "told"), [
    ("crashes", "killed by SIGSEGV (segmentation fault) while it started"), ("hangs", "no answer within 2 s"),
    ("raises", "RuntimeError: no worker today"),
])  # fmt: skip
def test_a_worker_that_cannot_be_made_ends_all_after_one_start(how, told, tmp_path, monkeypatch):
    monkeypatch.setattr(each, "START_LIMIT", 2.0)
    log = str(tmp_path / "log")
    ends = list(run_each(UNMADE, (log, how), range(40)))
    assert [end.index for end in ends] == list(range(40))
    assert all(told in end.why for end in ends)
    assert Path(log).read_text() == "made\n"


@sampled("how, starts, lost", [("first", 3, 8), ("but the second", 10, 0)], push=1)
def test_two_starts_in_a_row_that_fail_while_no_other_child_works_end_the_rest(
    tmp_path, how, starts, lost
):
    log = str(tmp_path / "log")
    ends = list(run_each(UNMADE, (log, how), range(9)))
    told = [end.crash.words.endswith("while it started") for end in ends]
    assert told == [False] * (9 - lost) + [True] * lost
    assert Path(log).read_text() == "made\n" * starts


def test_two_workers_work_at_once_and_results_come_as_they_are_done():
    ends = ended(("nap", 1.5), ("nap", 0.1), ("segfault",), ("nap", 0.2), workers=2)
    assert sorted(end.index for end in ends) == [0, 1, 2, 3]
    assert ends[-1].index == 0
    assert [end.index for end in ends if end.crash] == [2]


@pytest.mark.parametrize("how", ["in its group", "in a session", "without its word"])
def test_closing_the_iterator_leaves_no_process(tmp_path, how):
    file = tmp_path / "grandchild"
    ends = run_each(DOING, None, [("twice", 1), ("with_a_grandchild", str(file), how)])
    child = next(ends).result[3]
    deadline = time.monotonic() + 10
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    grandchild = int(file.read_text())
    assert lives(child)
    assert lives(grandchild)
    ends.close()
    assert gone(child)
    assert gone(grandchild)


SCRIPT = """
import sys
from gradprobe.processes import each, run_each
from gradprobe.processes.resource_limits import gpus
items = [("twice", 1), ("{hang}",)]
for end in run_each("tests.processes.workers:Doing", None, items):
    print(end.result[3], flush=True)
print("not reached")
"""


@pytest.mark.parametrize(("number", "hang"), [
    (signal.SIGINT, "hang_in_c"), (signal.SIGTERM, "hang_in_c"), (signal.SIGKILL, "hang_in_c"),
    (signal.SIGKILL, "hang"),
])  # fmt: skip
def test_a_parent_that_is_interrupted_or_killed_leaves_no_child(number, hang, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format(hang=hang))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as parent:  # fmt: skip
        child = int(parent.stdout.readline())
        time.sleep(0.3)
        assert lives(child)
        parent.send_signal(number)
        out, err = parent.communicate(timeout=20)
    allowed = (-2, 130, 1) if number == signal.SIGINT else (-number,)
    assert parent.returncode in allowed
    assert out == ""
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    assert gone(child)


def test_the_main_module_of_the_user_is_not_run_again(tmp_path):
    (tmp_path / "script.py").write_text(
        "print('once', flush=True)\nfrom gradprobe.processes import run_each\n"
        "print([end.result for end in run_each('tests.processes.workers:Doing', None, [('main_module',)])])\n"
    )
    (tmp_path / "json.py").write_text("raise SystemExit('this is not the json of Python')\n")
    ran = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "script.py"], cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if sys.version_info >= (3, 11):
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "once\n[None]\n", "")
