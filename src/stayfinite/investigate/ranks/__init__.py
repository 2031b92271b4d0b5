"""One investigation by several ranks."""
