"""What tiles of interpreted kernels hold, by element, and are made of."""

from ..stream import attempted
from ..views import Site, view_of
from .accesses import place
from .graph import CASTS, AccessLine, Conflict, Flow, Node, Role, StoredTile, behind
from .lanes import Lanes
from .tracer import followed

__all__ = [
    "CASTS", "AccessLine", "Conflict", "Flow", "Lanes", "Node", "Role", "Site", "StoredTile", "attempted",
    "behind", "followed", "place", "view_of",
]  # fmt: skip
