"""Distribution of a step's replicas over devices and processes."""
