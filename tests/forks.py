"""Processes of their own, for signals and kill -9: each is the fork of one that has loaded what they need."""

from multiprocessing import get_context

# torch takes seconds to load; there is one such process, so that all its modules stand in one list
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("pytest", "torch._inductor.config", "regard.cli.main", "regard.decode.translation", "regard.training.run"),
        *("regard.world", "tests.cli.commands", "tests.training.killed_runs"),
    ]
)
