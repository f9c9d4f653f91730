"""Helpers for all packages of the library. They need only the standard library and NumPy."""
