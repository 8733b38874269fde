"""What data, models and engines agree on about targets."""

IGNORE = -100  # a target that is not scored; torch's own default for ignore_index
