"""A trace beside the reference -> what is wrong, where first, and what only inherits."""
