"""What is said without being asked: a bar at a terminal alone, and no announcements of other libraries."""

import io
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from ppl_dgp import Guide, PowerEP, fit_svi, sparse_gp_regression


class Screen(io.StringIO):
    """Standard error that may be a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_fits_show_a_bar_at_a_terminal_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.linspace(-1.0, 1.0, 8)[:, None]
    model = sparse_gp_regression(4)
    monkeypatch.setenv("TERM", "xterm")
    for terminal, progress, shown in (
        (True, None, True),
        (False, None, False),
        (True, False, False),
        (False, True, True),
    ):
        screen = Screen(terminal)
        monkeypatch.setattr(sys, "stderr", screen)
        fit_svi(jax.random.key(0), model, Guide(model), PowerEP(), x, x, steps=3, progress=progress)
        assert ("3/3" in screen.getvalue()) == shown


@pytest.mark.slow
def test_the_announcement_of_arviz_is_kept_from_users(tmp_path: Path) -> None:
    program = "from ppl_dgp.diagnostics.arviz_api import container; container({}, {})"
    # a cache without the stamp of today, at which ArviZ would warn
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    for code, silent in ((program, True), ("import arviz", False)):
        (tmp_path / "arviz" / "daily_warning").unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert ("FutureWarning" not in done.stderr) == silent
