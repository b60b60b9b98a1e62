"""`gradprobe doctor`: is it the machine? A ladder of rungs, each simple enough to be blamed alone, and what runs."""
