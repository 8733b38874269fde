"""Sines and cosines of integer positions or distances (Vaswani et al., arXiv 1706.03762, section 3.5).

    (sin(m·w_0), …, sin(m·w_{J-1}), cos(m·w_0), …, cos(m·w_{J-1})),   w_j = theta^(-2j/C),   J = C/2

The paper writes them alternately; two halves are the same up to a fixed permutation of the features.
"""

import torch
from torch import Tensor

from coca_train.config.schema import ModelConfig
from coca_train.positions.base import Problem
from coca_train.positions.rope_scaling import base_inv_freq


def waves(pos: Tensor, theta: float, width: int) -> Tensor:
    """Return sines and cosines of positions, float32 (..., width); the angles are float32 products of integers."""
    w_J = base_inv_freq(theta, width, pos.device).float()
    angle = pos[..., None].float() * w_J
    return torch.cat((angle.sin(), angle.cos()), -1)


def width_problems(model: ModelConfig, scheme: str) -> list[Problem]:
    """Check for `Settings.problems` that d_model is even, where a scheme fills it with sines and cosines."""
    if model.d_model % 2 == 0:
        return []
    wrong = f"{model.d_model} is odd; {scheme} fills it with pairs of a sine and a cosine, so it must be even"
    return [("model.d_model", wrong, f"model.d_model={model.d_model + 1}")]
