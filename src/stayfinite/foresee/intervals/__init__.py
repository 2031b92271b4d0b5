"""Bounds the results of every captured operator for all inputs in a box."""
