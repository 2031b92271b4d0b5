"""The precision group: the same step in other precisions."""
