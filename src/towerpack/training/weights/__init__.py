"""Initial weights from files and other runs."""
