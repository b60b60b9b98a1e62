"""Sharded attention: one problem that a target solves in several ranks at once, each with its part of the whole.

Nothing below imports this folder, and a check without ranks loads none of it. `across_ranks` gives a target what runs
it in ranks; `probing.observe` asks that for a run where a case has ranks, and knows nothing else of them.
"""
