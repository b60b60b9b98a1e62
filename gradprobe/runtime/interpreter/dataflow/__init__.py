"""Dataflow: what the tiles of interpreted Triton kernels hold, element by element, and what they were made of."""

from .graph import Conflict, Flow, Node, Role, Site, Source, Stored
from .lanes import NOWHERE, Lanes
from .tracer import followed

__all__ = ["NOWHERE", "Conflict", "Flow", "Lanes", "Node", "Role", "Site", "Source", "Stored", "followed"]
