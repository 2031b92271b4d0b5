"""The init group: the weights that the training starts from."""
