"""The stability group: real steps at larger learning rates."""
