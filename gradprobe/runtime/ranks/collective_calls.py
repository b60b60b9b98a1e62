"""Calls: what ranks asked of torch.distributed, in their order, written as it is asked; and where two disagree."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from typing import Any

from ...processes.ended import is_users

# The methods of a process group that all of torch.distributed's functions come down to. Of the first, all ranks must
# pass tensors of one shape; what the others hand over may differ from rank to rank.
_OF_ONE_SHAPE = ("allreduce", "broadcast", "reduce", "_allgather_base", "_reduce_scatter_base", "barrier")
_OF_ANY = ("allgather", "alltoall_base", "alltoall", "reduce_scatter", "gather", "scatter")
_PAIRS = {"send": "sends", "recv": "receives"}


@dataclass(frozen=True)
class RankCall:
    """One of them."""

    rank: int
    name: str
    shapes: tuple[str, ...]
    """Of its tensors, with their dtypes."""
    ranks: tuple[int, ...]
    """Those of its group."""
    peer: int | None
    """Whom it sends to or receives from."""
    place: str
    """`ring.py:41`."""

    @property
    def in_words(self) -> str:
        return f"{self.name.strip('_')}{' of ' * bool(self.shapes)}{', '.join(self.shapes)} at {self.place}"


def record(rank: int, file: int) -> Callable[[], None]:
    """Has every call of this process written to a descriptor, a line each; returns what marks the start of a run."""
    from torch.distributed import ProcessGroup

    for name in (*_OF_ONE_SHAPE, *_OF_ANY, *_PAIRS):
        setattr(ProcessGroup, name, _recorded(getattr(ProcessGroup, name), name, rank, file))
    return lambda: _write(file, None)


def _recorded(method: Callable[..., Any], name: str, rank: int, file: int) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(group: Any, *arguments: Any, **named: Any) -> Any:
        import torch.distributed as dist

        # No call of the user's may fail by what is written of it.
        try:
            ranks = dist.get_process_group_ranks(group)
            at = arguments[1] if name in _PAIRS and len(arguments) > 1 else None
            peer = ranks[at] if isinstance(at, int) else None
            _write(file, (rank, name, list(_shapes(arguments[:1])), ranks, peer, _place()))
        except Exception:
            _write(file, (rank, name, [], [], None, "?"))
        return method(group, *arguments, **named)

    return called


def _shapes(value: Any) -> Iterator[str]:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _shapes(each)
    elif hasattr(value, "dtype"):
        yield f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def _place() -> str:
    frame = sys._getframe(2)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return "?" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _write(file: int, value: object) -> None:
    os.write(file, json.dumps(value).encode() + b"\n")


def read(written: str) -> list[RankCall]:
    """What one rank asked for since its run began."""
    calls: list[RankCall] = []
    for line in written.splitlines():
        if (value := json.loads(line)) is None:
            calls = []
        else:
            rank, name, shapes, ranks, peer, place = value
            calls.append(RankCall(rank, name, tuple(shapes), tuple(ranks), peer, place))
    return calls


def disagreements(calls: Mapping[int, Sequence[RankCall]]) -> Iterator[str]:
    """Sentences about calls that should go together and do not: another operation, or another shape."""
    for _, asked in _collectives(calls):
        at_once = enumerate(zip(*asked, strict=False), 1)
        differing = ((n, one[0], other) for n, one in at_once for other in one if _differs(one[0], other))
        for number, first, other in islice(differing, 1):
            words = f"rank {first.rank} calls {first.in_words}, rank {other.rank} {other.in_words}"
            yield f"collective {number} is not the same in all ranks: {words}"
    for sent, received in _pairs(calls):
        differing_pairs = ((s, r) for s, r in zip(sent, received, strict=False) if s.shapes != r.shapes)
        for s, r in islice(differing_pairs, 1):
            words = f"{', '.join(s.shapes)} to rank {r.rank} at {s.place}"
            yield f"rank {s.rank} sends {words}, which receives {', '.join(r.shapes)} at {r.place}"


def unanswered(calls: Mapping[int, Sequence[RankCall]]) -> Iterator[str]:
    """Sentences about ranks that receive what nobody has sent, or make a collective call alone."""
    for ranks, asked in _collectives(calls):
        most, fewest = max(asked, key=len), min(asked, key=len)
        for call in most[len(fewest) : len(fewest) + 1]:
            yield f"rank {call.rank} calls {call.in_words}, which rank {ranks[asked.index(fewest)]} has not done"
    for sent, received in _pairs(calls):
        for r in received[len(sent) : len(sent) + 1]:
            yield f"rank {r.rank} receives from rank {r.peer} at {r.place}, which has sent it nothing more"


def _collectives(calls: Mapping[int, Sequence[RankCall]]) -> Iterator[tuple[tuple[int, ...], list[list[RankCall]]]]:
    """Of each group its ranks, and what each of them asked it for together with the others."""
    together = {rank: [call for call in own if call.name not in _PAIRS] for rank, own in calls.items()}
    for ranks in dict.fromkeys(call.ranks for own in together.values() for call in own):
        yield ranks, [[call for call in together.get(rank, ()) if call.ranks == ranks] for rank in ranks]


def _differs(one: RankCall, other: RankCall) -> bool:
    return one.name != other.name or (one.name in _OF_ONE_SHAPE and one.shapes != other.shapes)


def _pairs(calls: Mapping[int, Sequence[RankCall]]) -> Iterator[tuple[list[RankCall], list[RankCall]]]:
    """Of each two ranks, what one sends to the other, and what that receives from it."""
    for source, to in permutations(calls, 2):
        sent = [call for call in calls[source] if call.name == "send" and call.peer == to]
        yield sent, [call for call in calls[to] if call.name == "recv" and call.peer == source]
