"""Errors meant for people: one clear line each, and the exit code a scheduler can act on."""


class UserError(ValueError):
    """Something the user can fix. `str(error)` is printed without a traceback."""

    exit_code = 2
    of_one_rank = False  # printed by each rank that it happens on, with its number; else by rank 0 for all
    on_all_ranks = False  # raised by all of them at the same place, so that collectives still work


class LaunchError(UserError):
    """The launcher's environment is wrong: this rank cannot meet the others."""

    of_one_rank = True


class DataError(UserError):
    """A data file that is missing, damaged or not the one the run began with."""

    exit_code = 3


class CheckpointError(UserError):
    """No checkpoint that can be trusted, or one that belongs to another run."""

    exit_code = 4


class DivergedError(UserError):
    """Too many non-finite steps in a row."""

    exit_code = 5
    on_all_ranks = True


class LockedError(UserError):
    """Another process works in this run directory."""

    exit_code = 6


class StorageError(UserError):
    """Disk full, read-only or failing."""

    exit_code = 7
    may_pass = True  # another try may succeed


class ResourceError(UserError):
    """Out of memory, threads, open files or locks."""

    exit_code = 8
    of_one_rank = True


# From 75 on (EX_TEMPFAIL of sysexits.h): nothing is wrong with the run, and a scheduler may start it again by itself.
class Preempted(UserError):
    """A stop was requested (SIGTERM), and everything is saved. Run the same command again."""

    exit_code = 75


class FaultyRank(UserError):
    """A rank computed something else from the same, or its memory changed. Run the same command on other machines."""

    exit_code = 76
    on_all_ranks = True


class PeerLost(UserError):
    """Another rank died or hangs. Run the same command again."""

    exit_code = 76
    of_one_rank = True
