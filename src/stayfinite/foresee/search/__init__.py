"""Builds plausible batches, starting from real ones."""
