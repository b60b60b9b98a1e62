"""From words to functions, by the names of arguments."""
