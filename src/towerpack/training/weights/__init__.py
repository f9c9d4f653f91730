"""Loading of weights from files and other runs."""
