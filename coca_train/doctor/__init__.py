"""Are these machines fit for the run? What every rank knows of its machine (machine.py) and measures before a training
(examine.py), and what is out of line in it."""
