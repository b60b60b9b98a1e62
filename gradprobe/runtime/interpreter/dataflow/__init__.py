"""Dataflow: what the tiles of interpreted Triton kernels hold, element by element, and what they were made of."""

from .accesses import place
from .graph import AccessLine, Conflict, Crossing, Flow, Node, Role, Site, StoredTile
from .lanes import NOWHERE, Lanes
from .tracer import followed

__all__ = [
    "NOWHERE", "AccessLine", "Conflict", "Crossing", "Flow", "Lanes", "Node", "Role", "Site", "StoredTile", "followed",
    "place",
]  # fmt: skip
