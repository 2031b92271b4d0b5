"""The findings of a scan: verdict, condition, and what to do."""

from __future__ import annotations

from .registry import register

_CODES = {
    "nonfinite_tensor": (
        "corrupt",
        "a tensor in the file contains NaN or Inf",
        "One element is enough. The report counts NaN, +Inf and -Inf, names the first index, the range of the rest and the role (weights, moments, EMA, statistics). An intended Inf (a mask, a min/max observer) does not count.",
        "Resume from the last good checkpoint, which `scan` names. If only the moments are bad, use the weights with a new optimizer.",
    ),
    "nonfinite_setting": (
        "corrupt",
        "a number that training resumes with (learning rate, loss scale, eps) is NaN or Inf",
        "It is in the state of the optimizer, the scheduler or the scaler.",
        "Set it again after loading, or go back to an earlier checkpoint.",
    ),
    "nonfinite_metric": (
        "suspicious",
        "a saved metric or other plain number is NaN or Inf",
        "A loss, a best score or a running average in the file. The initial `best` of many scripts is Inf; that does not count.",
        "The weights may be sound: check the step at which it was saved.",
    ),
    "absurd_magnitude": (
        "suspicious",
        "finite, but far larger than trained values usually are",
        "Weights or EMA beyond 1e6, running statistics beyond 1e12, moments beyond 1e15.",
        "The run was diverging when this was saved: go back to an earlier checkpoint.",
    ),
    "near_limit": (
        "suspicious",
        "the largest value is less than one doubling from its dtype's limit",
        "Not for 8-bit floats, which are scaled to their limit.",
        "The next update may overflow: lower the learning rate or keep it in float32.",
    ),
    "all_zero": (
        "suspicious",
        "a weight matrix is zero everywhere",
        "Not for tensors that start at zero: LoRA's B, biases, norms, position tables.",
        "Check that this layer was initialized, and that it was written completely.",
    ),
    "constant": (
        "suspicious",
        "a weight matrix holds one single value",
        "Not for tensors that start constant: biases, norms, position tables.",
        "Check that this layer was initialized, and that it was written completely.",
    ),
    "dead_variance": (
        "suspicious",
        "a BatchNorm running variance is zero or negative",
        "Zero: the channel saw constant input. Negative: the value was never a variance.",
        "Reset the statistics or drop the channel.",
    ),
    "negative_second_moment": (
        "suspicious",
        "an optimizer's mean of squared gradients is negative: its square root is NaN",
        "`exp_avg_sq` or its like is below 0 somewhere.",
        "Resume without the optimizer state, or from the checkpoint before.",
    ),
    "subnormal_flood": (
        "suspicious",
        "most values of a weight are subnormal: it has underflowed",
        "More than half of it.",
        "The weight has decayed to nothing, or was cast from a wider dtype: check both.",
    ),
    "scaler_collapsed": (
        "suspicious",
        "the saved loss scale is below 1",
        "The scaler halved its scale after many overflows.",
        "Go back to a checkpoint from before the scale fell, or reset the scaler.",
    ),
    "lr_mismatch": (
        "suspicious",
        "the learning rate in the file is not the one in the config",
        "With `--config FILE` or `--lr X`: a loaded optimizer or scheduler overrides the config.",
        "After `load_state_dict`, set `lr` (and `initial_lr`) in every parameter group again.",
    ),
    "unknown_call": (
        "suspicious",
        "loading the file would call an unknown function; `scan` did not call it",
        "A pickle names a function that no known kind of checkpoint needs.",
        "Load it only if you know where that function comes from.",
    ),
    "checksum_mismatch": (
        "suspicious",
        "the bytes of an archive entry do not match its checksum",
        "With `--checksums`. Files written with crc32 turned off show this too.",
        "The file was changed after it was written: copy it again, or take the previous checkpoint.",
    ),
    "missing_tensor": (
        "corrupt",
        "an index names a tensor that its file does not hold",
        "A shard of another save, or an incomplete one.",
        "Fetch the shard again, or take the previous checkpoint.",
    ),
    "hostile_pickle": (
        "hostile",
        "loading the file in the usual way could run foreign code",
        "A pickle that calls something able to start a process, open a file or a connection, or evaluate text. `scan` read it without running it.",
        "Do not load it with pickle or `torch.load(weights_only=False)`; ask for safetensors instead.",
    ),
    "zip_bomb": (
        "hostile",
        "an archive would inflate beyond any honest size, or reuses its bytes",
        "Beyond 256 MB at more than 200 to 1, or entries that share bytes.",
        "Do not unpack this file.",
    ),
    "unsafe_name": (
        "hostile",
        "an archive entry's name points outside the archive",
        "An absolute path, or `..` in it.",
        "Do not unpack this file.",
    ),
    "truncated": (
        "unreadable",
        "the file ends too early",
        "The header announces more bytes than there are.",
        "The write was cut short or the copy is incomplete: take the previous checkpoint.",
    ),
    "unreadable": (
        "unreadable",
        "the format is not known, or the file is inconsistent",
        "Neither name nor first bytes match a format that `scan` reads, or the parts of the file do not fit together.",
        "Is it a checkpoint at all? Was it written completely?",
    ),
    "limit_exceeded": (
        "unreadable",
        "reading on would cost more memory or time than a scan may take",
        "The file was made to exhaust its reader, or is unusually large.",
        "Raise `--max-seconds` or `--max-memory` if you trust it.",
    ),
    "missing_file": (
        "unreadable",
        "a file of the checkpoint is missing",
        "The index of a sharded checkpoint names it.",
        "Fetch the missing shards again.",
    ),
    "not_scanned": (
        "suspicious",
        "a tensor could not be checked; the others were",
        "This torch does not know its dtype.",
        "Scan it with the torch that wrote it.",
    ),
    "internal_error": (
        "unreadable",
        "a fault in stayfinite itself; please report it",
        "The other files were still scanned.",
        "`stayfinite --version --verbose` says what a report needs.",
    ),
}  # fmt: skip

for _name, (_verdict, _definition, _when, _do) in _CODES.items():
    register(
        _name, "scan", _definition, {"Verdict": _verdict, "Found when": _when, "Do": _do}
    )  # fmt: skip
