"""`torchrun -m gradprobe check`: rank 0 checks and reports, in as many ranks of its own; the others end at once."""

from __future__ import annotations

import os

# What torchrun says to each of its processes. None of it may reach the process that checks: it is no rank.
_SAID = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def ranks_of_torchrun() -> int | None:
    """How many ranks torchrun started on this machine, of which this is the first; None where not more than one.

    Raises:
        SystemExit: this is not the first, which needs no others.
    """
    size = os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
    if not size.isdigit() or size == "1":
        return None
    if os.environ["RANK"] != "0":
        raise SystemExit(0)
    for name in [
        name for name in os.environ if name in _SAID or name.startswith("TORCHELASTIC_")
    ]:
        del os.environ[name]
    return int(size)
