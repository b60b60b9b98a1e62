"""`from gradprobe.testing import assert_backward_matches`: a check as an assertion, in pytest or anywhere else.

Its names load when they are asked for: pytest imports this package in every run of every project that has the plugin.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .assertion import assert_backward_matches, report_on

__all__ = ["assert_backward_matches", "report_on"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import assertion

    return getattr(assertion, name)
