"""Programs are kept within bounds, and what is dropped is freed; a forked process is told that it cannot fit."""

import subprocess
import sys
import weakref

import jax
import numpy as np
import pytest

from ppl_dgp.fit import fit_svi, program
from ppl_dgp.fit import kept as kept_programs
from ppl_dgp.fit.kept import keep, kept
from ppl_dgp.guides import Guide
from ppl_dgp.models import sparse_gp_regression
from ppl_dgp.numerics.compatibility import shapes_compiled
from ppl_dgp.objectives import PowerEP

FORKED = """
import multiprocessing, sys
import jax, jax.numpy as jnp, numpy as np
from ppl_dgp import Guide, PowerEP, fit_svi, sparse_gp_regression
from ppl_dgp.numerics.compatibility import lost_its_threads

def fit(key):
    model, x = sparse_gp_regression(2), np.zeros((3, 1))
    try:
        fit_svi(key, model, Guide(model), PowerEP(0.0), x, x, steps=1)
    except RuntimeError as error:
        print(error)

def forked(*args):
    process = multiprocessing.get_context("fork").Process(target=args[0], args=args[1:])
    process.start()
    process.join(60)
    if process.exitcode != 0:
        process.kill()
        print("stuck")

forked(lambda: print(lost_its_threads()))
key = jax.random.PRNGKey(0)
forked(fit, key)
forked(lambda: forked(fit, key))
print(lost_its_threads())
"""


class Thing:
    """Holds itself, as programs do."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def few(monkeypatch):
    """Room for eight programs, none of them there."""
    monkeypatch.setattr(kept_programs, "PROGRAMS_KEPT", 8)
    monkeypatch.setattr(kept_programs, "_programs", type(kept_programs._programs)())


def test_the_least_recently_used_are_dropped_and_freed(few):
    things = [Thing() for _ in range(8)]
    alive = [weakref.ref(thing) for thing in things]
    for number, thing in enumerate(things):
        keep(number, thing)
    assert [kept(number) for number in range(8)] == things
    assert kept(0) is things[0]  # the last that was used
    del things, thing
    keep(8, Thing())
    there = [number for number in range(9) if kept(number) is not None]
    assert there == [0, 3, 4, 5, 6, 7, 8]
    assert [number for number in range(8) if alive[number]() is None] == [1, 2]


def test_programs_are_dropped_before_the_mappings_of_memory_run_out(few, monkeypatch, tmp_path):
    maps, most = tmp_path / "maps", tmp_path / "max_map_count"
    maps.write_text("a mapping\n" * 50)
    most.write_text("100\n")
    monkeypatch.setattr(kept_programs, "_MAPPINGS", maps)
    monkeypatch.setattr(kept_programs, "_MOST_MAPPINGS", most)
    monkeypatch.setattr(kept_programs, "_give_back", lambda: None)  # seconds, of a process that holds much
    for number in range(4):
        keep(number, Thing())
    assert all(kept(number) for number in range(4))
    maps.write_text("a mapping\n" * 51)
    keep(4, Thing())
    assert [number for number in range(5) if kept(number) is None] == [0]
    # and what is needed now stays, whatever else fills the process
    for _ in range(9):
        keep(5, Thing())
    assert kept(5) is not None


@pytest.mark.slow
def test_tables_of_many_lengths_do_not_add_up(monkeypatch):
    monkeypatch.setattr(program, "SHAPES_KEPT", 2)
    found = []
    ordinary = program.cached_program

    def noted(svi, build, *settings):
        found.append(ordinary(svi, build, *settings))
        return found[-1]

    monkeypatch.setattr("ppl_dgp.fit.devices.program.cached_program", noted)
    model = sparse_gp_regression(2)

    def losses(rows):
        x = np.linspace(0.0, 1.0, rows)[:, None]
        return fit_svi(jax.random.PRNGKey(0), model, Guide(model), PowerEP(0.0), x, x, steps=2).losses

    first = losses(4)
    for rows in (5, 6):
        losses(rows)
    again = losses(4)
    np.testing.assert_array_equal(first, again)
    assert found and max(shapes_compiled(each.run) for each in found) <= 2


def test_a_forked_process_refuses_what_would_wait_for_ever():
    """Forked before JAX has begun it may fit; after that its threads are missing, in its own children too."""
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    first, *refused, last = said.stdout.splitlines()
    assert first == last == "False" and len(refused) == 2
    for text in refused:
        assert text.startswith("process: found one that was forked when JAX had begun") and '"spawn"' in text
