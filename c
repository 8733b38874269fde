E         Skipping 1616 identical leading characters in diff, use -v to show
E           val` |
E         + | `show` | print the batch of any training step with its provenance, from the run directory alone |  |
E           | `embedded` | make the quickstart's corpus from this Python installation (no network) |  |
E           
E           ## Choices...
E         
E         ...Full output truncated, use '-vv' to show

/tmp/wt-data/tests/data_prep/test_command.py:365: AssertionError
=========================== short test summary info ============================
FAILED tests/config/test_typed_choices.py::test_what_does_not_apply_is_told_once
FAILED tests/config/test_verbs.py::test_one_dialect[plan] - AssertionError: a...
FAILED tests/data_prep/test_command.py::test_verbs_with_options_of_their_own[show-step=12]
FAILED tests/data_prep/test_command.py::test_docs_are_up_to_date - AssertionE...
