"""What there is to see of a suite's results, where it is more than its module has room for."""
