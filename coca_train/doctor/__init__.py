"""Is this machine, are these nodes fit for the run? What every rank measures, and what is out of line.

A rank measures (`facts`, `files`, `disk`, `compute`, `network`), rank 0 judges (`judge`, `rates`: pure functions over
measured values) and shows a table (`table`). Ranks talk through the store of their meeting place (`roll`), not through
the process group: so a group that cannot be formed is something to report, and a rank that does not come has a number.
"""
