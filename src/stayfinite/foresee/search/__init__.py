"""Builds batches that real data may bring one day, starting from real ones."""
