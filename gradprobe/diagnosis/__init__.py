"""Why a target is wrong: what was seen, each hypothesis tested against all of it, and what is
said where none fits.
"""
