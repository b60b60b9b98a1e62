"""The nouns: the case, the intermediates, the report, its diagnosis, failures."""
