"""Runs probes: one step of the training each, put back afterwards."""
