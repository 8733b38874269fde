"""Train language models whose context reaches further than they were trained on."""

__version__ = "0.1.0"
