"""One thin file per framework, imported only on request.

- `stayfinite.integrations.lightning`: `StayfiniteCallback` for the Trainer, `protect` for Fabric
- `stayfinite.integrations.transformers`: `StayfiniteCallback` for the Trainer
- `stayfinite.integrations.accelerate`: `protect`
- `stayfinite.integrations.notebook`: `%load_ext stayfinite`
- `stayfinite.integrations.pytest_plugin`: `pytest --stayfinite`
"""
