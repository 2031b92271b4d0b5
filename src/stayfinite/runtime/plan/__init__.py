"""A training in stages, followed."""
