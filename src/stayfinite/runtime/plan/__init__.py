"""Follows a training in stages."""
