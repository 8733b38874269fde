"""The first hour on a GPU: what was only counted before is measured, part by part, and each figure is held against what
was expected of it. `python -m benchmarks.gpu --help`."""
