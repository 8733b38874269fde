"""What a schedule will cost, known before it starts: parameters, memory, FLOPs, hours, and what changes between stages.

Nothing is estimated that can be looked at: the model is built on the meta device (shapes without memory), one training
step is run on it, and what that step would allocate and compute is counted. What an engine holds besides is written
down in `engines.py`, and tests hold it against the engines.
"""
