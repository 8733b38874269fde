"""Models of transformers around our own decoder, for schemes that hub/export_files/ does not compute.

`import coca_train.transformers` registers them.
"""
