"""Explainers of a run that was followed: each a function of one signature, asked in the order of
`suspects`.
"""
