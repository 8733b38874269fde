"""What there is to see of each suite's results: report blocks."""
