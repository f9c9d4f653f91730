"""Data sets: fetched when needed, checked, and read as flows with random access."""
