"""The config group: settings of the training and of its config file, and safer ones."""
