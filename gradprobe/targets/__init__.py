"""What is checked: from a word to a function, its arguments by name, and the file that it is."""
