"""The edges group: which possible batch breaks the training."""
