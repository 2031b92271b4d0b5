"""A step that the guard makes: `guard.step(loss_fn, batch)`."""
