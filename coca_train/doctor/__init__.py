"""Are these machines fit for the run? What every rank measures before a training, and what is out of line.

Each rank measures itself; rank 0 compares all ranks and prints one table. The ranks talk through the store at which the
process group meets (`rendezvous`), not through the group itself: so the doctor reports a group that cannot be formed,
and names a rank that does not come.
"""
