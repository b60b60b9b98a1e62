"""Watches the memory of kernels in Triton's interpreter: accesses outside their tensors, races, reads of nothing.

Import only once TRITON_INTERPRET=1 is in the environment: triton is imported here.
"""

from ....inputs.memory import Unwritten
from .accesses import LaneCounts
from .findings import AccessFinding, AddressSpot, Earlier
from .watch import Memory, watched_memory

__all__ = ["LaneCounts", "Earlier", "AccessFinding", "Memory", "AddressSpot", "Unwritten", "watched_memory"]
