"""The smallest case that fails in the same way: an ordering, the steps down it, the search, what is written."""
