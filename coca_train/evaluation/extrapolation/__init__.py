"""Perplexity beyond the training window, as a finished run and a comparison report it."""
