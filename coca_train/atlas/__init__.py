"""The atlas: what a position method lets a small model do with its context, and how far beyond its training."""
