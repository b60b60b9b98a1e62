"""One probe: the runs of a target under its layouts, second runs that must agree, looks inside,
the receipt.
"""
