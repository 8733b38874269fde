"""What is recorded while a run trains: metric records, where they go, throughput."""
