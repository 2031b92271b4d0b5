"""The pages about frameworks are run, block by block."""

import re
from pathlib import Path

import pytest
import torch
from tests.integrations.watched import line_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def blocks(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.S)


def names(tmp_path):
    """What the blocks take for granted: a model, an optimizer, a loader with one bad sample."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 4), torch.rand(40) + 0.5
    y[21] = -1.0
    model = nn.Linear(4, 1)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "loader": DataLoader(TensorDataset(x, y), batch_size=4),
        "samples": [{"x": a, "labels": b} for a, b in zip(x, y)],
    }


def with_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 1)

        def training_step(self, batch, batch_idx):
            return (self.net(batch[0]).squeeze(-1) - batch[1].log()).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = {
        "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return {"module": Module(), "quiet": quiet}


def with_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 1)

        def forward(self, x, labels):
            loss = (self.net(x).squeeze(-1) - labels.log()).pow(2).mean()  # HERE
            return {"loss": loss}

    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=10, per_device_train_batch_size=4, report_to=[],
        use_cpu=True, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    return {"hf_model": Model(), "hf_args": args}


@pytest.mark.parametrize("number", range(4))
def test_the_blocks_about_frameworks_run(number, tmp_path, capsys):
    code = blocks("INTEGRATIONS.md")[number]
    pytest.importorskip("accelerate")
    given = names(tmp_path)
    if "StayfiniteCallback" in code:
        make = with_lightning if "lightning" in code else with_transformers
        given |= make(tmp_path)
    file = tmp_path / "block.py"  # as a script has one: its statements are read
    file.write_text(code, encoding="utf-8")
    exec(compile(code, str(file), "exec"), given)
    line = str(line_of(__file__, "# HERE"))
    expected = ("5 aten.log domain_error", "domain_error", line, "5")[number]
    assert capsys.readouterr().out.strip().splitlines()[-1] == expected


def test_the_page_has_no_block_that_is_not_run():
    assert len(blocks("INTEGRATIONS.md")) == 4
