"""Replays a failed step, and traces it."""
