"""One investigation on several ranks."""
