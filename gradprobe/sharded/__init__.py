"""Sharded attention: one problem that several ranks solve at once. Nothing below imports this folder."""
