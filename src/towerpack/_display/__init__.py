"""What people look at: rows of the terminal (Rich), figures (Matplotlib)."""
