"""Rotation of feature pairs (j, j + R/2) by angles that grow with the position. Angles are float32."""

import math

import torch


def spectrum(rotary, length, device):
    """Radians per position of every pair, and the factor on q' and k', for a text of `length` tokens.

    rotary: {"kind": "fixed", "inv_freq", "temperature"},
    {"kind": "ntk", "theta", "alpha", "original_seq_len", "width"},
    {"kind": "by_parts", "kept", "slowed", "original_seq_len", "yarn"}: kept + slowed / s, s = max(1, l / L), or
    {"kind": "two", "short", "long", "original_seq_len", "temperature"}: short up to L, long beyond.
    """
    if rotary["kind"] in ("fixed", "two"):
        which = "inv_freq"
        if rotary["kind"] == "two":
            which = "long" if length > rotary["original_seq_len"] else "short"
        return torch.tensor(rotary[which], dtype=torch.float32, device=device), rotary["temperature"]
    stretch = max(1.0, length / rotary["original_seq_len"])
    if rotary["kind"] == "ntk":
        width, alpha = rotary["width"], rotary["alpha"]
        theta = rotary["theta"] * (alpha * stretch - (alpha - 1)) ** (width / (width - 2))
        exponents = -torch.arange(0, width, 2, dtype=torch.float64) / width
        return (theta**exponents).float().to(device), 1.0
    kept, slowed = (torch.tensor(rotary[key], dtype=torch.float64) for key in ("kept", "slowed"))
    temperature = 0.1 * math.log(stretch) + 1.0 if rotary["yarn"] else 1.0
    return (kept + slowed / stretch).float().to(device), temperature


def rotary_tables(rotary, pos_BT, length):
    """cos and sin, (B, T, 1, R), temperature multiplied in; and the temperature."""
    inv_freq_J, temperature = spectrum(rotary, length, pos_BT.device)
    angle_BTJ = pos_BT.float()[..., None] * inv_freq_J
    angle_BT1R = torch.cat((angle_BTJ, angle_BTJ), -1)[:, :, None]
    return angle_BT1R.cos() * temperature, angle_BT1R.sin() * temperature, temperature


def turn(x, cos, sin):
    """R x, float32."""
    a, b = x.float().chunk(2, -1)
    return x.float() * cos + torch.cat((-b, a), -1) * sin


def turn_part(x, cos, sin, temperature):
    """The first R features turned, the others times the temperature; x's precision."""
    width = cos.shape[-1]
    rest = x[..., width:].float() * temperature
    return torch.cat((turn(x[..., :width], cos, sin), rest), -1).to(x.dtype)
