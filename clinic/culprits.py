"""`python -m clinic.culprits`: for the cases whose cause is a setting, is the line named that set it?

The truth is the text of the line; several where they are equally right. Cases of the same causes that
are not listed have no such line: what they hold was made bad outside of their source.
"""

from __future__ import annotations

import sys

import torch

from clinic.form import all_cases
from clinic.measure import FORMS, run

CULPRITS: dict[str, tuple[str, ...]] = {
    "adam_without_epsilon": ("optimizer=torch.optim.Adam(model.parameters(), lr=1e-2, eps=eps),",),
    "half_weights_default_adam": ("optimizer=torch.optim.Adam(model.parameters(), lr=1e-3, eps=eps),",),
    "bert_half_static_scale_gradients": ("return scale * per_word / len(words)",),
    "fp16_regressor_static_scale": ("return loss * loss_scale  # <- born here",),
    "autocast_static_scale_hard_batch": ("return self.scale * error.square().sum(1).mean()",),
    "scaler_without_scaler_step": ('scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, enabled=enabled)', "return scaler.scale(loss)"),
    "homemade_scaler_collapse": ("return loss * self.scale", "self.scale = (self.scale / 16).clamp(min=self.smallest)"),
    "bilstm_crf_transitions": ("self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))",),
    "char_rnn_resumed_from_diverged": ("model.load_state_dict(torch.load(folder / checkpoint))",),
    "observation_statistics_saved_too_early": ('model.load_state_dict(torch.load(folder / "policy.pt"))',),
    "optimizer_state_saved_in_half": ('optimizer.load_state_dict(saved["optimizer"])',),
    "adapter_file_from_diverged_run": ('model.load_state_dict(torch.load(folder / "adapter.pt"), strict=False)',),
    "energy_forecaster_half_export": ('model.load_state_dict(torch.load(folder / "released.pt"))',),
    "frozen_batch_norm_bad_statistics": ('model.load_state_dict(torch.load(folder / "pretrained.pt")["model"])',),
    "crop_boxes_collate": ("return (boxes - origin) / size",),
    "silent_clip_standardized": ("wave = (wave - wave.mean()) / wave.std().clamp(min=self.floor)",),
    "gene_counts_log_transform": ("return (self.log(per_million) - 10.0) / 2.0",),
    "diffusion_cosine_all_warmup": ("progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)",),
    "policy_gradient_log_decay_to_zero": ("return torch.exp(weight * log_final).item()",),
    "segmentation_poly_schedule_overrun": ("return [base * left.pow(self.power).item() for base in self.base_lrs]",),
    "translation_inverse_sqrt_restart": ("return torch.rsqrt(torch.tensor(float(self.first + step - HOLD))).item()",),
    "house_prices_plain_sgd": ("optimizer=torch.optim.SGD(model.parameters(), lr=lr),",),
    "matrix_factorization_ratings": ("optimizer=torch.optim.SGD(model.parameters(), lr=lr, weight_decay=1e-4),",),
    "token_transformer_lost_minus_sign": ("optimizer=torch.optim.Adam(model.parameters(), lr=lr),",),
    "value_network_step_size": ("optimizer=torch.optim.SGD(model.parameters(), lr=step_size),",),
    "linear_warmup_never_stops": ("return min((step + 1) / WARMUP_EPOCHS, highest)",),
    "lr_range_test_left_on": ("scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor**step),",),
    "idf_buffer_unseen_terms": ('self.register_buffer("idf", torch.log((len(corpus) + smooth) / document_frequency))',),
    "prototypes_without_support": ("means = (one_hot.T @ features) / counts.unsqueeze(1)",),
    "citation_graph_isolated_node": ('self.register_buffer("adjacency", normalized_adjacency(edges, self_loops))',),
    "retina_prior_bias": ("self.logits.bias.copy_(log_odds(frequency))",),
    "resume_brings_back_probe_rate": ('optimizer.load_state_dict(saved["optimizer"])',),
    "resume_restarts_schedule_at_peak": ("scheduler = LambdaLR(optimizer, decay)",),
    "resume_scheduler_but_not_optimizer": ('resumed.model.load_state_dict(saved["model"])', 'resumed.scheduler.load_state_dict(saved["scheduler"])'),
    "resume_swaps_parameter_groups": ('optimizer.load_state_dict(saved["optimizer"])',),
    "molecule_energy_inf_label": ("self.records = [json.loads(line) for line in lines]", "record = self.records[index]"),
    "depth_map_sensor_holes": ("return drive.images[i], drive.depths[i]",),
}  # fmt: skip


def main(names: list[str]) -> int:
    """Exit code 0 when nine in ten are right, in each half of the cases."""
    torch.set_num_threads(1)
    right: dict[str, list[bool]] = {}
    for entry in all_cases():
        wanted = CULPRITS.get(entry.name)
        if wanted is None or entry.truth is None or (names and entry.name not in names):
            continue
        for form in FORMS:
            incident = run(entry, form).incident
            found = incident.location.culprit if incident is not None else None
            is_right = found is not None and any((found.source or "") == w for w in wanted)
            right.setdefault(entry.truth.split, []).append(is_right)
            if not is_right:
                cause = incident.diagnosis.cause if incident is not None else None
                print(f"{entry.name} ({form}, {entry.truth.split}): {cause}: {found}")
    for split, marks in right.items():
        print(f"{split}: culprit line right in {sum(marks)} of {len(marks)}")
    return 0 if all(sum(m) >= 0.9 * len(m) for m in right.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
