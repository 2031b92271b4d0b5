"""Batches that real data will bring one day, made from real ones."""
