"""A step as it happens: the engine, its drivers, the training's state and the ranks."""
