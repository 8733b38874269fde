"""What there is to choose from: every scheme, its frequencies and its attention patterns, described by its own files
and measured on its own tensors. `python -m coca_train schemes` and docs/schemes.md are made of this."""
