"""The rules that reports for CI name: ids that never change, each told in docs/rules.md.

An id is never given to another rule, nor taken back: alerts that somebody closed are known by it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..model import memory


@dataclass(frozen=True)
class Rule:
    """One kind of finding."""

    id: str
    name: str
    """In CamelCase, for lists of rules."""
    level: str
    """SARIF's: error, warning, note, or none for what is told and no finding."""
    rank: float
    """0 to 100, the worst first."""
    summary: str
    meaning: str
    help: str
    """What to do."""


# Id, name, level, rank and summary; below them the meaning, and what to do.
_TABLE = """
GP001 WrongIntermediate, error, 80: An intermediate is wrong by itself
  Some elements differ from the float64 reference by more than their budget, and the intermediate's own inputs do not
  explain the difference: the code that computes it is wrong.
  - Look at the first one in dataflow order: gradprobe diff NAME shows it close up.
GP002 InheritedError, note, 10: An intermediate is wrong, but right given its wrong inputs
  Some elements differ from the reference by more than their budget, but agree with what the target's own wrong inputs
  imply.
  - Correct the cause that it names, or else the intermediate that is wrong by itself, and check again.
GP003 BrokenIdentity, error, 70: An identity of attention's gradients is broken
  A relation that every right backward keeps, whatever the reference says, is broken by more than the sum of the
  budgets.
  - If intermediates are wrong too, begin with those. If not, look at what differs between two runs or two layouts.
GP004 Cause, error, 85: A cause of what is wrong
  A hypothesis about the code was tested, and it reproduces at least 90 % of the wrong elements within their budget.
  Each of several faults is a cause of its own.
  - Correct the named lines as the fix says, and check again.
GP010 AccessOutsideTensor, error, 95: A kernel reads or writes outside its tensor
  A load or a store went to an address that does not belong to the tensor whose pointer it began from.
  - Correct the stride, the offset or the mask on the named line.
GP011 GuardBandTouched, error, 94: The guard band around a tensor was read or written
  The known values around a tensor changed during the run, or other values there changed the results.
  - Look for an address beyond the side of the tensor that is named.
GP012 UnwrittenOutput, error, 90: Part of an output is never written, or what was never written is read
  Some elements still hold what was in memory before the run, so they are right only by chance.
  - Look for rows that no program of the grid covers, or for a buffer that must begin as zeros.
GP013 StoreRace, error, 92: Two programs or threads touch one address, one of them storing, with no atomic or barrier
    between
  The device decides which of them comes first, so the result may differ from run to run.
  - Use atomic adds or a barrier, or give each program addresses of its own.
GP014 DivergentBarrier, error, 91: Threads of a block wait at a barrier that others never reach
  Every thread of a block must reach a barrier, and all of them the same one; otherwise the behaviour is undefined.
  - Move the barrier out of the branch or loop that some threads leave earlier.
GP015 MisalignedAccess, error, 93: A kernel reads or writes several elements at once at an address that is no multiple
    of their size
  A GPU ends the process at such an access, although a CPU carries it out.
  - Access element by element where a stride or an offset does not allow more, or refuse such a tensor.
GP016 InputOverwritten, error, 90.5: An input is overwritten
  The run changed a tensor that the target was given, and whatever reads that tensor next reads the new values.
  - Write to a tensor of the target's own. If the change is intended, allow it: --inplace TENSOR.
GP017 ResultInOtherMemory, error, 89: A gradient lies in the memory of an input or of another gradient
  Its values are right only until somebody writes there: an optimizer's step, or setting gradients to zero, changes the
  other tensor too.
  - Return a tensor of its own, or parts of one buffer that share no element.
GP018 CoarserResult, error, 88: A result is returned in a coarser dtype
  O and each gradient must be able to hold every number of the dtype of the tensor that they belong to. A coarser dtype
  loses what it rounds off, and what overflows becomes infinite. A wider dtype is right.
  - Return the result in the dtype of that tensor, or in float32.
GP020 Crash, error, 100: The target ended its process
  The process that ran the target ended with a segmentation fault, by an exit, or for lack of memory; or an access that
  a GPU does not allow left it without its device.
  - Run the given command under a debugger or compute-sanitizer.
GP021 Timeout, error, 99: The target did not end in time
  The target gave no sign of life for longer than the time limit.
  - Look for a loop or a barrier that does not end, or allow more time.
GP022 TargetFailed, error, 98: The target cannot be run, or returns what it may not return
  The target cannot be imported, it raises, or something that it returns has a wrong name, shape or type. Nothing was
  compared.
  - The message says what to do; --traceback shows where the error was raised.
GP023 ReferenceFailed, error, 97: The reference failed its audit
  The reference breaks identities that every right reference keeps, so it cannot judge a target.
  - Correct the reference, or leave out --reference.
GP024 ToolFailed, error, 96: gradprobe itself failed
  The tool made an error, which says nothing about the target.
  - Run again with --traceback, and report it.
GP025 WrongUsage, error, 96.5: The command or a configuration is wrong
  Nothing was run.
  - The message names what was given and what is known.
GP026 Incomplete, error, 95.5: The command has not come to its end
  The command is still running, or it was killed: the report so far is no verdict.
  - Run it again.
GP030 LayoutRefused, none, 0: The target refused a layout
  The target raised an error on purpose, so this layout was skipped and the check says nothing about it.
  - Nothing needs to be done if the target documents that it does not take such a tensor.
GP040 OffsetOf32Bits, warning, 60: Wrong only where an offset passes 2^31 elements
  The same strides are right while they are small: an index or an offset is held in 32 bits.
  - Make indices 64 bits wide before they are multiplied by a stride, or refuse tensors that large.
GP041 StridedVector, warning, 50: Wrong only where a vector of parameters is strided
  The kernel assumes that a vector with one number for each head or sequence (tau, sinks, slopes, lengths) is
  contiguous, as it is in most programs.
  - Pass its stride to the kernel, or make it contiguous in the wrapper.
GP042 UndeclaredCase, warning, 40: The target fails in a case that it never declared to take
  The target raised an error, or returned another shape, in a case that none of its parameters declares.
  - Raise a ValueError that says what is taken, which is then no warning; or take it.
GP043 RightByCoincidence, warning, 55: A kernel is right only by coincidence
  All that was run matches, and in a small case that was left out a kernel misreads one tensor beside others that it
  reads rightly: two strides or two lengths were equal.
  - Correct the address or the mask on the named line, or refuse such a case.
"""
_RULE = re.compile(
    r"^(GP\d+) (\w+), (\w+), ([\d.]+): (.*(?:\n    .*)*)\n((?:  \w.*\n)+)  - (.*(?:\n    .*)*)$", re.MULTILINE
)


def _rule(found: re.Match[str]) -> Rule:
    known, name, level, rank, summary, meaning, help_ = found.groups()
    return Rule(known, name, level, float(rank), *(" ".join(words.split()) for words in (summary, meaning, help_)))


RULES = tuple(map(_rule, _RULE.finditer(_TABLE)))
_BY_ID = {rule.id: rule for rule in RULES}
WRONG, INHERITED, IDENTITY, CAUSE = (_BY_ID[f"GP{number:03}"] for number in (1, 2, 3, 4))
REFERENCE, TOOL, USAGE, REFUSED = (_BY_ID[f"GP{number:03}"] for number in (23, 24, 25, 30))
_WARNED = (memory.HUGE, memory.VECTOR, memory.UNDECLARED, memory.COINCIDENCE)
OF_WARNING = {kind: _BY_ID[f"GP{number:03}"] for number, kind in enumerate(_WARNED, 40)}
_KINDS = ["outside", "guard", "unwritten", "race", "barrier", "misaligned", "changed", "shared", "dtype"]
OF_MEMORY = {kind: _BY_ID[f"GP{number:03}"] for number, kind in enumerate(_KINDS, 10)}
_FAILURES = {
    "GP020": "Crash DeviceLost NoRoom",
    "GP021": "Timeout",
    "GP022": "TargetFailure RanksFailure Refusal KernelStopped NoKernel",
    "GP023": "ReferenceFailure",
    "GP025": "UsageFailure Untested",
    "GP026": "Incomplete",
}
OF_FAILURE = {kind: _BY_ID[known] for known, kinds in _FAILURES.items() for kind in kinds.split()}
