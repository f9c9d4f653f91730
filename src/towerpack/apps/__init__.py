"""Finished applications. None imports another."""
