"""What a schedule will cost, before it starts: parameters, memory, FLOPs, hours, and what changes between stages.

The model is built on the meta device (shapes without memory), and one training step runs on it: its allocations and
FLOPs are counted, not estimated. `engines.py` declares what an engine holds in addition; tests compare it with the
engines.
"""
