"""What DeepSpeed is told: its own settings, from ours. Its schedulers, optimizers and checkpoints are not used.

What a step sends, counted in tests/engine/test_communication.py (docs/operations.md has the bytes):

| stage         | gradients                                               | weights                         |
|---------------|---------------------------------------------------------|---------------------------------|
| ZeRO 1, bf16  | one all-reduce of float32 sums, after the last backward | all-gather                      |
| ZeRO 1 others | all-reduce by buckets at the end, or to the owner       | all-gather                      |
| ZeRO 2        | the same for every micro batch, while it runs backward  | all-gather                      |
| ZeRO 3        | reduce-scatter of every micro batch, the same           | all-gathers, as they are needed |

What DeepSpeed calls reduce-scatter in ZeRO 1 and 2 is an all-reduce of each bucket, of which a rank keeps its part:
twice the bytes. With `use_multi_rank_bucket_allreduce` off it reduces each part to its owner.
"""

from typing import Any

from torch import nn

from coca_train.config.schema import EngineConfig

NEVER = 10**12


def settings_of(
    config: EngineConfig, max_grad_norm: float, micro_batch_size: int, accumulation: int, width: int
) -> dict[str, Any]:
    """width: of the model (d_model), which the sizes that are left to us go by."""
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": max_grad_norm if config.zero_stage else 0.0,  # ZeRO 0: `_guarded_step` clips
        "steps_per_print": NEVER,
        "zero_allow_untested_optimizer": True,  # ours (engine/muon.py): it is told how ZeRO cuts what it steps
        "zero_optimization": _zero(config, width),
    }
    if config.communication_dtype != "auto" or config.dtype != "fp16":
        # DeepSpeed's own choice would round float32 sums to bf16 on their way.
        auto = config.communication_dtype == "auto"
        settings["communication_data_type"] = "fp32" if auto else config.communication_dtype
    if config.dtype == "bf16":
        settings |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    if config.dtype == "fp16":
        settings |= {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}}
    return settings


def _zero(config: EngineConfig, width: int) -> dict[str, Any]:
    overlap = config.overlap_communication
    # transformers' rule for DeepSpeed's "auto" sizes: a square matrix ahead (less a tenth, so that one is enough), and
    # what is as small as ten vectors is not cut.
    prefetch = int(0.9 * width**2) if config.prefetch_size is None else config.prefetch_size
    whole = 10 * width if config.persistence_threshold is None else config.persistence_threshold
    return {
        "stage": config.zero_stage,
        "reduce_bucket_size": config.bucket_size,
        "allgather_bucket_size": config.bucket_size,
        # Not in ZeRO 1: with micro batches to add up it would send each of them.
        "overlap_comm": config.zero_stage >= 2 if overlap is None else overlap,
        "use_multi_rank_bucket_allreduce": config.gradient_reduction == "all_reduce",
        "stage3_prefetch_bucket_size": prefetch,
        "stage3_param_persistence_threshold": whole,
        # Else ZeRO 3 puts a function of its own in place of torch.nn.functional.linear, for the whole process: the
        # module that evaluation is lent would compute with it too.
        "memory_efficient_linear": False,
    }


def width_of(module: nn.Module) -> int:
    """d_model, from what the first layer of the first block takes."""
    return next(each.in_features for each in module.get_submodule("blocks").modules() if isinstance(each, nn.Linear))
