"""Gathers the evidence for the rules from the live training, its source and its data."""
