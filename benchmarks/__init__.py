"""Side by side with pip-installable peers, as ratios within one run. Not installed with the package."""
