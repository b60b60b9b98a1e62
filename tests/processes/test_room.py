"""The memory that a command may take: as it is said, and half of what the machine and its control groups leave free."""

import pytest

from gradprobe.model.failures import UsageFailure
from gradprobe.processes.resource_limits import free, held_by, limit, parsed

GIB = 1 << 30


@pytest.mark.parametrize(
    ("word", "size"), [("3G", 3 * GIB), ("1.5GiB", 3 * GIB // 2), ("1073741824", GIB)]
)
def test_sizes_are_read_as_people_write_them(word, size):
    assert parsed(word) == size


@pytest.mark.parametrize("word", ["", "much", "-3G", "499M"])
def test_what_is_no_size_or_too_small_to_run_anything_is_refused(word):
    with pytest.raises(UsageFailure, match="--max-memory"):
        parsed(word)


def machine(root, files, available=20 * GIB):
    for name, text in {
        "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:   {available >> 10} kB\n",
        **files,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = {
    "proc/self/cgroup": "0::/build/job\n",
    "sys/fs/cgroup/build/job/memory.max": "max\n",
    "sys/fs/cgroup/build/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/build/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/build/memory.stat": f"anon 5\ninactive_file {GIB}\n",
}
# In a container the path of its own group is that outside, and what is seen of it is the root.
CONTAINER = {
    "proc/self/cgroup": "0::/docker/abc\n",
    "sys/fs/cgroup/memory.max": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory.current": "0\n",
}


@pytest.mark.parametrize(("files", "expected"), [({}, 20), (V2, 2), (CONTAINER, 3)])
def test_what_is_free_is_what_the_tightest_group_leaves_that_holds_this_process(
    tmp_path, files, expected
):
    assert free(machine(tmp_path, files)) == expected * GIB


def test_a_process_of_several_has_its_share_of_what_was_said(monkeypatch):
    monkeypatch.setenv("GRADPROBE_MAX_MEMORY", "8G")
    assert limit() == 8 * GIB
    monkeypatch.setenv("GRADPROBE_MEMORY_SHARE", str(2 * GIB))
    assert limit() == 2 * GIB
    assert held_by(2**22 + 1) == 0
