"""What somebody who adds a scheme, frequencies or an attention pattern needs: stubs of the files, and the contract as
tests.

A contract is a class of tests that a test file inherits, in this repository and outside it. It asks for a definition
that is slow and plain, written from the paper, and holds the code to it; docs/extending.md walks through it. Nothing
else in coca_train imports this package, and it does not import pytest.
"""
