"""The table of letters: where its points lie, and what their density is."""

import numpy as np
import pandas as pd

from benchmarks.letters import SIDE, in_ink, ink_above, parts, points, summary


def test_points_lie_in_the_ink_and_nowhere_else():
    found = points(4000)
    assert found.shape == (4000, 2) and in_ink(found).all()
    assert np.abs(found).max() <= SIDE and (np.abs(found).max(0) > 0.99 * SIDE).all()
    # its edges, its stem and its bowl: the D is hollow, and then nothing comes before the G
    stem, bowl, right, between = np.array([[-2.8, 0.0], [-2.0, 0.0], [-1.3, 0.0], [-0.98, 2.9]])
    assert in_ink(np.array([stem, right])).all() and not in_ink(np.array([bowl, between])).any()


def test_density_of_the_ink_is_that_of_its_points():
    """∫ ink(x) dx is the area of the ink, which points of the whole square find too; and p(y | x) = 1 / ink(x)."""
    x = (np.arange(600) + 0.5) / 600 * 2.0 * SIDE - SIDE
    ink = ink_above(x)
    tried = np.random.default_rng(3).uniform(-SIDE, SIDE, (40_000, 2))
    inside = in_ink(tried)
    square, error = (2.0 * SIDE) ** 2, inside.std() / 200.0
    assert abs(ink.mean() * 2.0 * SIDE / square - inside.mean()) < 4.0 * error
    # the share of points left of 0 is that of the ink
    table = points(10_000, 1)
    share = ink[x < 0].sum() / ink.sum()
    assert abs((table[:, 0] < 0).mean() - share) < 4.0 * np.sqrt(share * (1.0 - share) / 10_000)


def test_a_tenth_is_held_out():
    table = points(200)
    train, test = parts(table, 3)
    assert train.shape == (180, 2) and test.shape == (20, 2)
    assert np.array_equal(np.sort(np.concatenate([train, test]), 0), np.sort(table, 0))
    assert not np.array_equal(test, parts(table, 4)[1])


def test_differences_are_of_the_same_seeds():
    columns = ("fewer", "ink", "coverage95", "bound", "noise", "gap", "converged", "steps", "seconds")
    found = pd.DataFrame(
        {"model": ["GP", "DGP"] * 3, "seed": [0, 0, 1, 1, 2, 2], "test_log_density": [1, 2, 5, 6.5, 3, 3.5]}
        | {name: 0.0 for name in columns}
    )
    table = summary(found)
    assert table.more["DGP"] == 1.0
    np.testing.assert_allclose(table.error["DGP"], 0.5 / np.sqrt(3.0))
