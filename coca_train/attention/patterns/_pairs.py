"""Properties of a scheme that attention patterns require before they move far pairs to other positions."""

from coca_train.attention import PatternSettings
from coca_train.attention.pattern import not_linear
from coca_train.positions.base import Position, Problem


def not_by_pairs(settings: PatternSettings, position: Position, needs_positions: bool = False) -> list[Problem]:
    """Refuse schemes whose positions are part of the embeddings, that sum up the tokens in between, or that have no
    positions where some are needed."""
    scheme, fix = (
        position.settings.scheme,
        "write attention_pattern=sliding_window, or choose a rotary or relative scheme",
    )
    if not position.by_pairs:
        wrong = f"{settings.name} moves far pairs to other positions, and {scheme} knows only the tokens' own ones"
        return [("attention_pattern.name", f"{wrong}; a scheme that acts on pairs is needed", fix)]
    if problems := not_one_stretch(settings, position):
        return problems
    if needs_positions and not position.sees_positions:
        wrong = f"{settings.name} limits distances, and {scheme} knows none"
        return [("attention_pattern.name", f"{wrong}; a scheme with positions is needed", fix)]
    return []


def not_one_stretch(settings: PatternSettings, position: Position) -> list[Problem]:
    """Refuse schemes that sum up the tokens in between where a query does not see one stretch of them, in one view."""
    if not position.carries:
        return not_linear(settings, position)
    scheme = position.settings.scheme
    wrong = f"{settings.name} sees near and far tokens in different ways, and {scheme} sums up all tokens in between"
    fix = "write attention_pattern=sliding_window, or choose a rotary or relative scheme"
    return [("attention_pattern.name", f"{wrong}; one way of seeing is needed", fix)]


def not_relative(settings: PatternSettings, position: Position) -> list[Problem]:
    """Refuse schemes that see more than distances: renumbering tokens would change every pair of them."""
    if position.relative:
        return []
    wrong = f"{settings.name} moves tokens to other positions together, and {position.settings.scheme} sees more"
    fix = "write attention_pattern=lambda_mask or sliding_window (of coca, position.variant=strict is relative)"
    return [("attention_pattern.name", f"{wrong} than their distance; a relative scheme is needed", fix)]


def beyond_table(settings: PatternSettings, position: Position, field: str) -> list[Problem]:
    """Refuse far pairs at a distance, the value of `field`, for which a table of learned positions has no row."""
    distance, rows = getattr(settings, field), position.max_positions
    if rows is None or distance < rows:
        return []
    wrong = f"far pairs stand {distance} apart, and {position.settings.scheme} has {rows} positions"
    return [
        (
            f"attention_pattern.{field}",
            f"{wrong}; a smaller distance is needed",
            f"write attention_pattern.{field}={rows - 1}",
        )
    ]
