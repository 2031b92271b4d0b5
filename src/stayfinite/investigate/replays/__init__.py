"""Who computes a failed step again, and what is traced meanwhile."""
