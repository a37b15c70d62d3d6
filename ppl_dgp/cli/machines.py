"""One fit over several processes: how they find each other, and how they end together."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ppl_dgp.cli.errors import BadInput

LOST = 3  # exit code of a process whose peer is gone
HEARTBEAT_SECONDS = 30  # a machine that is not heard for so long is gone
SHUTDOWN_SECONDS = 15


@dataclass(frozen=True)
class Launch:
    """Where the processes meet, how many they are and which this is; what is None the launcher's environment tells."""

    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None

    def check(self) -> None:
        """Raise BadInput unless all three are given and fit together, or none is."""
        given = [self.coordinator, self.processes, self.process]
        if any(value is None for value in given) and any(value is not None for value in given):
            raise BadInput(
                "of --coordinator, --processes and --process some are given and some are not",
                "give all three, or none under Slurm or Open MPI",
            )
        if self.coordinator is None or self.processes is None or self.process is None:
            return
        if not self.coordinator.rpartition(":")[2].isdigit() or ":" not in self.coordinator:
            raise BadInput(f"--coordinator is {self.coordinator!r}", "give HOST:PORT of process 0")
        if self.processes < 1 or not 0 <= self.process < self.processes:
            raise BadInput(
                f"--process is {self.process} of --processes {self.processes}",
                "count from 0 to one less than all",
            )


@contextmanager
def joined(launch: Launch) -> Iterator[None]:
    """Join the other processes, by JAX's own runtime; nothing may have used a device before.

    When another process is gone, this one says so in a line and exits with code 3; where JAX's runtime notices first,
    as of a machine that is silent for 30 seconds, it ends the process itself, in words of its own.
    """
    launch.check()
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            launch.coordinator,
            launch.processes,
            launch.process,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except ValueError:
        raise BadInput(
            "--distributed is given, but no launcher is known here (Slurm, Open MPI)",
            "give --coordinator HOST:PORT, --processes and --process",
        ) from None
    try:
        with _only_ours_on_stdout():
            yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        reason = str(error).strip().split("\n")[0]
        print(
            f"ppl-dgp: error: process {jax.process_index()} lost another process ({reason}); start them all again with "
            "--resume",
            file=sys.stderr,
            flush=True,
        )
        os._exit(LOST)  # what waits for the others at exit would wait for ever


@contextmanager
def _only_ours_on_stdout() -> Iterator[None]:
    """Send to standard error what libraries print on standard output when they connect."""
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)
