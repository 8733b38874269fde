"""The files that an export of a CoCA model ships beside its weights, as they stand here: see modeling_coca.py."""
