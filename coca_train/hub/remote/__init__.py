"""What transformers sees of an exported model: its configuration, its class, the bridge to its cache.

An export ships these files and what they need of this package, cut out by hub/bundle.py.
"""
