"""Bounds what every captured operator can give for all inputs in a box."""
