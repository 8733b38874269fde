"""Colours of a heat map: from light to dark as the figure rises, and the ink that can be read on each.

Luminance and contrast as WCAG 2.2 defines them (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio).
"""

import math

Rgb = tuple[int, int, int]

RAMP: tuple[Rgb, ...] = ((247, 250, 253), (203, 222, 240), (116, 175, 214), (36, 111, 176), (9, 45, 98))
INKS: tuple[Rgb, ...] = ((255, 255, 255), (0, 0, 0))  # one of the two has at least 4.5 on any colour


def ramp(share: float) -> Rgb:
    """The colour at `share` (0 to 1, clamped) of the way from low to high."""
    place = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    index = min(int(place), len(RAMP) - 2)
    pairs = zip(RAMP[index], RAMP[index + 1], strict=True)
    red, green, blue = (round(low + (high - low) * (place - index)) for low, high in pairs)
    return red, green, blue


def ground(value: float | None, low: float, high: float) -> Rgb | None:
    """The colour of a figure's square, on a ramp from low to high; None where there is no finite figure."""
    if value is None or not math.isfinite(value):
        return None
    return ramp((value - low) / (high - low) if high > low else 0.0)


def ink_on(colour: Rgb) -> Rgb:
    return max(INKS, key=lambda ink: contrast(ink, colour))


def hex_of(colour: Rgb) -> str:
    return "#" + "".join(f"{channel:02x}" for channel in colour)


def contrast(one: Rgb, other: Rgb) -> float:
    """1 (the same) to 21 (black on white)."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Rgb) -> float:
    shares = [channel / 255 for channel in colour]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
