"""Runs probes: one training step each, undone afterwards."""
