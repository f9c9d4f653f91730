"""Progress rows in a terminal (drawn with Rich) and figures (drawn with Matplotlib)."""
