"""Looks inside a Triton kernel: values that it keeps on chip are stored, without a change to its file."""

from .propose import propose
from .session import Reading, Session, tapped
from .tap import Tap, parse_tap

__all__ = ["Reading", "Session", "Tap", "parse_tap", "propose", "tapped"]
