"""What goes beside the weights of an export that no native class computes: modelling files that need transformers only.

`export` copies configuration_coca_train.py, modeling_coca_train.py, position_base.py, rotary.py, and the file of the
scheme as position.py.
They are written a second time, densely, on purpose: the parity check compares them with the real thing.
"""
