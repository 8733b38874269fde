"""How commands were called before they were verbs of `coca_train`."""
