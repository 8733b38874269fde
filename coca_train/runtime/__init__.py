"""What every room stands on: processes, signals, durable files, errors, words for a terminal."""

# A target that is not scored, for data, models and engines alike; torch's own default for ignore_index.
IGNORE = -100
