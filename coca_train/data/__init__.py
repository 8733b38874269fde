"""Token files, their order, and the batches made of them."""
