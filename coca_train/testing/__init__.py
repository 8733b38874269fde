"""Tools for adding a scheme, a RoPE scaling or an attention pattern: stubs of the files, and the contract as tests.

A contract is a class of tests that a test file inherits, in this repository and outside it. It requires a definition
that is slow and plain, written from the paper, and compares the code with it; docs/extending.md explains it. Nothing
else in coca_train imports this package, and it does not import pytest.
"""
