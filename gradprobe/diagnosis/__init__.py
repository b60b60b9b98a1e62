"""Why a target is wrong: what was seen, and each hypothesis tested against all of it."""
