"""Names that mislead: a running average of the loss is no model, a cache of embeddings no checkpoint."""

import torch

from stayfinite.checkpoint import scan
from stayfinite.checkpoint.roles import is_data_file, role_of
from stayfinite.checkpoint.text import describe_scan


def test_a_running_average_of_the_loss_is_a_metric(tmp_path):
    state = {"model": {"w": torch.ones(2)}, "loss_ema": torch.tensor(float("nan"))}
    torch.save(state, tmp_path / "t.pt")
    report = scan(tmp_path / "t.pt")
    (only,) = report.files[0].findings
    assert (only.code, only.role, report.verdict) == ("nonfinite_metric", "metric", "suspicious")
    torch.save({**state, "loss_ema": float("nan")}, tmp_path / "t.pt")
    (only,) = scan(tmp_path / "t.pt").files[0].findings
    assert (only.code, only.role) == ("nonfinite_metric", "metric")


def test_weights_that_only_sound_like_a_metric_stay_weights():
    assert role_of(("model", "score.weight")) == "weights"
    assert role_of(("ema_model", "fc.weight")) == "ema"
    assert role_of(("model", "head", "loss")) == "weights"
    assert role_of(("model", "loss_ema")) != "metric" != role_of(("net_g", "best_loss"))
    assert role_of(("metrics", "val_loss")) == "metric"
    assert role_of(("optimizer", "param_groups", "0", "lr")) == "optimizer"


def test_an_embeddings_cache_is_data(tmp_path):
    torch.save({"embeddings": torch.rand(8, 4), "labels": torch.arange(8)}, tmp_path / "cache.pt")
    torch.save({"model": {"embeddings.weight": torch.rand(8, 4)}}, tmp_path / "step_1.pt")
    report = scan(tmp_path)
    kinds = {c.path.rpartition("/")[2]: c.kind for c in report.checkpoints}
    assert kinds == {"cache.pt": "data", "step_1.pt": "file"}
    lines = list(describe_scan(report))
    assert lines[-1].startswith("1 checkpoint: 1 healthy; 1 data file: 1 healthy (")


def test_an_embedding_layer_alone_is_no_cache():
    assert not is_data_file(["embeddings.weight"]) and not is_data_file([])
    assert is_data_file(["train_embeddings", "ids", "x_val"])
