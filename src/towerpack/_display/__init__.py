"""Progress rows in a terminal (Rich), and figures (Matplotlib)."""
