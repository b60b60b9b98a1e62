"""Is it the test? A reference of the user's own is judged, and its first wrong formula named with its line."""
