"""Values that a report is made of: frozen, typed, plain. They cross processes and go through JSON both ways."""
