"""A tiny BERT trained by the real transformers Trainer; one sample has an infinite label."""
import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=32, max_position_embeddings=16, num_labels=1)
model = BertForSequenceClassification(config)
data = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.randn(())} for _ in range(64)]
data[21]["labels"] = torch.tensor(float("inf"))
args = TrainingArguments(output_dir=sys.argv[1], per_device_train_batch_size=4, max_steps=14,
                         logging_steps=1000, save_strategy="no", report_to=[], use_cpu=True,
                         disable_tqdm=True, data_seed=3, seed=3)
trainer = Trainer(model=model, args=args, train_dataset=data)
trainer.train()
print("steps", trainer.state.global_step)
print("finite", all(torch.isfinite(p).all().item() for p in model.parameters()))
