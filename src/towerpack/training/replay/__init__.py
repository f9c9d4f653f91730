"""Data of past steps: history of a run, batches of its steps, and counts of the rows it read."""
