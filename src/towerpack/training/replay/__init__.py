"""Data of past steps: shown, explained and skipped."""
