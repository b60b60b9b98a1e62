"""What every word of a report means: faults, rules, identities and budgets, each told once, in the files beside this.

`gradprobe explain` shows it, SARIF's rules and their help hold it, and docs/explain.md is written from it.
"""
