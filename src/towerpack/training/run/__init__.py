"""One run: opened, assembled, seen by callbacks, ended."""
