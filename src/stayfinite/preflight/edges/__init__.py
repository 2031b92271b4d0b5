"""The edges group: which batch that may come breaks the training."""
