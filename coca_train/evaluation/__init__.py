"""Evaluation: a grid of checkpoints, variants and points, measured cell by cell by one suite."""
