SEED = 3
EXTRA = {"lr": 7, "note": "an lr of another kind"}


class Optim:
    lr: float = 5.0  # far too high
