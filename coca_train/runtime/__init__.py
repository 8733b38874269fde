"""What every room stands on: processes, signals, durable files, errors, words for a terminal."""
