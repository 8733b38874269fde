"""Records of a training: metrics, trackers, throughput."""
