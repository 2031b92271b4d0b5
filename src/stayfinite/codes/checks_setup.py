"""The checks of environment, config and data.

The limits of the config checks are rules with sources in `preflight/config/rules.py`; their pages show them.
"""

from __future__ import annotations

from .registry import register

_CHECKS = {
    "environment/versions": (
        "torch, torchvision, torchaudio and Python belong together",
        "one of them was built for another torch, or this torch does not support this Python",
        "install the version that the finding names",
    ),
    "environment/known-bad": (
        "none of the pairs of versions that are known to give NaN or failing kernels",
        "torch 2.5.0 with cuDNN attention (NaN gradients); torch 2.11 and later with cuDNN attention and a mask on compute capability 9; cuDNN 9.11 to 9.13 attention with dropout",
        "another version, or `torch.backends.cuda.enable_cudnn_sdp(False)`",
    ),
    "environment/device": (
        "an available GPU is used",
        "there is a GPU, but the model is on the CPU",
        "`model.to('cuda')` before the optimizer is made",
    ),
    "environment/dtype": (
        "the default dtype, and autocast",
        "the default dtype is half precision (fail) or float64; bfloat16 autocast on a GPU that only emulates it; autocast left on outside of any `with` block",
        "`torch.set_default_dtype(torch.float32)`, and autocast around forward and loss only",
    ),
    "environment/anomaly": (
        "anomaly mode is off",
        "`torch.autograd.set_detect_anomaly(True)` was left on and slows every step down",
        "remove it; `stayfinite run` finds the operator without it",
    ),
    "environment/grad-mode": (
        "gradients are recorded",
        "inference mode is on, or gradients are switched off globally: nothing would be learned",
        "remove `torch.set_grad_enabled(False)`; `with torch.no_grad():` around evaluation only",
    ),
    "environment/determinism": (
        "deterministic algorithms, if enabled, neither raise nor are overridden",
        "they are enabled on a GPU without CUBLAS_WORKSPACE_CONFIG (fail), or together with `cudnn.benchmark`",
        "`export CUBLAS_WORKSPACE_CONFIG=:4096:8` before Python starts; `torch.backends.cudnn.benchmark = False`",
    ),
    "environment/tf32": (
        "the precision of float32 products",
        "they may be computed in bfloat16 (`medium`), or float16 products are summed in float16",
        '`torch.set_float32_matmul_precision("high")`',
    ),
    "environment/benchmark": (
        "`cudnn.benchmark` suits the batches",
        "it is on and the batches differ in shape: every new shape is measured again",
        "`torch.backends.cudnn.benchmark = False`",
    ),
    "environment/debug-switches": (
        "no debugging switch was left in the environment",
        "CUDA_LAUNCH_BLOCKING, PYTORCH_NO_CUDA_MEMORY_CACHING or TORCH_COMPILE_DEBUG is set",
        "unset it",
    ),
    "environment/threads": (
        "no more threads than cores",
        "torch computes with more threads than the machine has cores",
        "`torch.set_num_threads(...)`",
    ),
    "environment/shared-memory": (
        "room for the batches of the loader's workers",
        "less than 64 MB of shared memory are free and the loader has workers; a full one kills them with a bus error",
        "start the container with `--shm-size=2g` or `--ipc=host`",
    ),
    "environment/memory": (
        "the training fits the memory",
        "weights, gradients and two moments take more than is free on the model's device",
        "a smaller model, sharding (FSDP), or an optimizer with less state",
    ),
    "environment/disk": (
        "room for two checkpoints",
        "less is free than two checkpoints (three times the weights each) and 1 GB",
        "free space, or save elsewhere: a checkpoint that is cut off may replace the last good one",
    ),
    "config/figures": ("there are settings to check", "skipped if there is neither a config file nor an optimizer", "name the file with `--config`"),
    "config/differs": (
        "the values of the config file are the ones in use",
        "a value in the file differs from the optimizer's, the clipping's or the loader's. A multiple of the batch size may be the total of all devices and passes",
        "find out which one you want: an argument, a default or a restored checkpoint may override the file",
    ),
    "config/schedule": (
        "the schedule, followed 2000 steps ahead (and restored)",
        "a rate that is NaN, infinite, or negative in the first epoch; a formula that raises; a rate that stays 0",
        "repair the formula; the finding names its first bad step",
    ),
    "config/grad-scaler": (
        "the GradScaler fits the precision",
        "float16 autocast without one (gradients below 6e-8 become zero), or bfloat16 autocast with one",
        "`torch.amp.GradScaler()` for float16, none for bfloat16",
    ),
    "config/clip-reached": (
        "ordinary steps stay below the clipping limit",
        "every gradient norm of the first steps is more than 1000 times the limit: every step has the same length",
        "find out why gradients are so large (see the groups forward and init) before clipping them away",
    ),
    "config/save-every": (
        "what a failure would cost: the steps between two checkpoints",
        "half of the run or more lies between two saves, or the value is not an interval",
        "save every 1,000 steps, or ten times in a run",
    ),
    "config/eval-every": (
        "how late a model that gets worse is seen: the steps between two evaluations",
        "half of the run or more lies between two evaluations, or the value is not an interval",
        "evaluate every 1,000 steps, or ten times in a run",
    ),
    "config/lr": ("the learning rate for this optimizer and model", "", ""),
    "config/warmup": ("the warmup, beside the length of the run", "", ""),
    "config/weight-decay": ("the weight decay for this kind of optimizer", "", ""),
    "config/clip": ("the norm that gradients are clipped to", "", ""),
    "config/adam-eps": ("the epsilon of Adam and its relatives", "", ""),
    "config/beta1": ("the decay of the first moment", "", ""),
    "config/beta2": ("the decay of the second moment", "", ""),
    "config/momentum": ("the momentum of SGD", "", ""),
    "config/ema": ("the decay of an average of the weights", "", ""),
    "config/temperature": ("a temperature that logits are divided by", "", ""),
    "config/focal-gamma": ("the exponent of a focal loss", "", ""),
    "config/focal-gamma-root": ("a focal exponent between 0 and 1", "", ""),
    "config/label-smoothing": ("the mass that smoothing takes from the label", "", ""),
    "config/sinkhorn": ("the epsilon of a Sinkhorn iteration", "", ""),
    "config/norm-eps": ("the epsilon of a normalization layer", "", ""),
    "config/eps": ("any other epsilon, in the precision that it is used in", "", ""),
    "config/batch-norm": ("how many samples a batch norm sees", "", ""),
    "config/bn-momentum": ("the share of the newest batch in a running statistic", "", ""),
    "config/init-scale": ("where the loss scale starts", "", ""),
    "config/growth-interval": ("how often the loss scale grows", "", ""),
    "config/growth-factor": ("by how much the loss scale grows", "", ""),
    "config/backoff-factor": ("by how much the loss scale falls after an overflow", "", ""),
    "config/dropout": ("the share that dropout leaves out", "", ""),
    "config/mixup": ("the parameter of mixup or cutmix", "", ""),
    "config/batch-size": ("the size of a batch", "", ""),
    "config/accumulation": ("how many batches make one step", "", ""),
    "data/coverage": ("how many samples were checked", "skipped if no data set was found. All samples are checked if time allows, otherwise evenly spread ones", "`--budget` gives more time"),
    "data/finite": (
        "every sample is finite",
        "a NaN or Inf; the finding names part, feature and samples. Only a warning if the first steps met NaNs and stayed finite, since they are then masked or filled",
        "clean, fill or drop the samples; their indices are in the report",
    ),
    "data/range": (
        "values are of an ordinary size",
        "a magnitude above 1e18 (its square overflows float32), above 65504 under float16 autocast if a batch with it is not finite, above 1e6; images from 0 to 255",
        "scale or standardize that feature",
    ),
    "data/outliers": (
        "no value far beyond the others of its feature",
        "a value 1000 times larger than nine in ten of its feature: often a code for a missing one (-9999)",
        "replace the code for a missing value, or clip the feature",
    ),
    "data/constant": (
        "every feature varies",
        "a constant feature: its deviation is 0, and standardizing divides by it. Columns of zeros in data of 64 and more features are taken for padding, and what is only 0 and 1 for events",
        "drop the feature, or keep its deviation above 0",
    ),
    "data/labels": (
        "labels are valid for the loss",
        "negative (except -100 and -1), beyond the model's classes, outside of 0 to 1 for a binary cross entropy",
        "repair the labels, or the number of classes",
    ),
    "data/balance": (
        "no class is all of the data or none of it",
        "one class only, one class above 95 %, a class that never comes among 50 samples for each class",
        "check how the data was split and sampled",
    ),
    "data/ids": ("every id has a row in its table", "a word number beyond the largest embedding", "a larger table, or the unknown-word id"),
    "data/shapes": ("samples can be stacked", "samples of different shapes under the default collate function", "pad or crop them, or give the loader a `collate_fn`"),
    "data/empty": ("no sample is empty", "a sample without an element. A batch with it is run: finite is a pass, broken a fail", "mend the mean that is taken over it, or drop it"),
    "data/last-batch": ("the last batch of an epoch is large enough", "a last batch of one sample and a batch norm", "`drop_last=True`"),
    "data/order": ("the data is shuffled", "sorted labels without shuffling", "`shuffle=True`"),
    "data/duplicates": ("samples differ", "30 % of the samples are copies", "check how the data was assembled"),
    "data/readable": ("every sample can be fetched", "a sample that raises", "the index and the error are in the finding: repair or drop it"),
    "data/loader": ("the loader gives batches", "a batch that raises", "repair the data set or the `collate_fn` at the named line"),
    "data/dtype": ("samples have the model's dtype", "float64 samples for a float32 model", "`.float()` in the data set"),
}  # fmt: skip

for _name, (_definition, _when, _do) in _CHECKS.items():
    _details = {"Warns or fails when": _when, "Do": _do}
    register(_name, "check", _definition, {k: v for k, v in _details.items() if v})
