"""From a word to a function, its arguments by name, and its file."""
