"""Weights from the Hugging Face world and back, with a parity check at the end of every way."""
