"""The stages in order: what was asked for, the case that fits, the runs, the diagnosis, the
evidence.
"""
