"""`guard.step(loss_fn, batch)`: a step that the guard makes."""
