"""Texts that ask for something they hold: to train on (data_prep retrieval) and to be asked (evaluation/measures)."""
