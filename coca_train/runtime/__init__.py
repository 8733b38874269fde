"""The foundation of all packages: processes, signals, durable files, errors, text for a terminal."""

# A target that is not scored, for data, models and engines alike; torch's own default for ignore_index.
IGNORE = -100
