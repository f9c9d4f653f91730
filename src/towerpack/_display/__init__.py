"""Output for people: rows of the terminal (Rich), figures (Matplotlib)."""
