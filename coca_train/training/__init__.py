"""A run from its first step to its last: wiring, stages, the loop, the weights it starts with."""
