"""The N of PaLM's formula for the FLOPs of a token (coca_train/tracking/throughput.py)."""

from torch import nn


def matmul_parameters(model: nn.Module) -> int:
    """Count the weights that every token is multiplied with, output head included.

    Not counted: the embedding table, which is a look-up (once when it is also the head), position parameters, norms and
    biases.
    """
    tensors = dict(model.named_parameters())
    counted = {name: p.numel() for name, p in tensors.items() if p.ndim >= 2 and not name.startswith("position")}
    if "head.weight" in counted:
        counted.pop("embed.weight", None)
    return sum(counted.values())
