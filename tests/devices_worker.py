"""Fits over eight virtual CPU devices beside the same fits on one; run by `test_devices.py` in a process of its own."""

import sys

import jax
import numpy as np
import numpyro

numpyro.enable_x64()

from ppl_dgp.data import open_rows  # noqa: E402
from ppl_dgp.fit import fit_stream, fit_svi  # noqa: E402
from ppl_dgp.fit.devices import Placement  # noqa: E402
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide  # noqa: E402
from ppl_dgp.models import deep_gp  # noqa: E402
from ppl_dgp.objectives import PowerEP  # noqa: E402

ROWS = 32
DEVICES = jax.devices()
random = np.random.default_rng(0)
x = random.normal(size=(ROWS, 2))
y = np.sin(2.0 * x[:, :1]) + 0.1 * random.normal(size=(ROWS, 1))
model = deep_gp((2,), 5)
key = jax.random.key(1)


def alike(one, other):
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-9)
    assert one.losses.shape == (1, 8) and np.ptp(one.losses) > 1.0
    assert one.params.keys() == other.params.keys()
    # where q(u) begins at its prior the kernel's slopes are 0 but for rounding, 3e-14, of which the size of Adam's eps,
    # 1e-8, makes first steps of 3e-8: another order of a sum is another such step
    for name in one.params:
        np.testing.assert_allclose(one.params[name], other.params[name], rtol=1e-6, atol=1e-7, err_msg=name)
        assert len(other.params[name].devices()) == 1


def fit(hidden, **settings):
    return fit_svi(key, model, Guide(model, hidden=hidden), PowerEP(0.0), x, y, steps=8, chunk=4, **settings)


def refused(message, **settings):
    try:
        fit(DoublyStochastic(), **settings)
    except ValueError as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"not refused: {settings}")


def whole():
    """All rows at each step, parameters for each datum; where they lie, and what is refused."""
    alike(fit(Conditional()), fit(Conditional(), devices=DEVICES))

    # parameters for each datum, and what the optimiser keeps of them, lie with their data; the rest is on every device
    state = {"local": np.zeros((ROWS, 3)), "global": np.zeros((5, 3)), "key": jax.random.key(0)}
    placement = Placement.over(DEVICES, ROWS, "rows")
    placed = placement.state(state, ROWS, 1)
    assert {shard.data.shape for shard in placed["local"].addressable_shards} == {(4, 3)}
    assert {shard.data.shape for shard in placed["global"].addressable_shards} == {(5, 3)}
    assert placed["global"].is_fully_replicated and placed["key"].is_fully_replicated

    refused("batch_size: found 12 over 8 devices", batch_size=12, devices=DEVICES)
    refused("the number of rows: found 32 over 5 devices", devices=DEVICES[:5])
    refused("devices: found 0", devices=[])
    refused("devices: found 2, 1 of them different", devices=[DEVICES[0]] * 2)


def minibatches():
    """Some rows at each step, parameters for each datum."""
    alike(fit(Conditional(), batch_size=8), fit(Conditional(), batch_size=8, devices=DEVICES))


def stream():
    """Rows from a source; a second fit compiles nothing."""
    compiled: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: (
            compiled.append(seconds) if event.endswith("backend_compile_duration") else None
        )
    )
    rows = open_rows((x, y), block_rows=5)
    settings = dict(steps=8, chunk=4, batch_size=16)
    guide, objective = Guide(model, hidden=DoublyStochastic()), PowerEP(0.0)
    shared = fit_stream(key, model, guide, objective, rows, devices=DEVICES, **settings)
    alike(fit_stream(key, model, guide, objective, rows, **settings), shared)
    before = len(compiled)
    again = fit_stream(key, model, guide, objective, rows, devices=DEVICES, **settings)
    assert before > 0 and len(compiled) == before
    np.testing.assert_array_equal(again.losses, shared.losses)


assert len(DEVICES) == 8
{"whole": whole, "minibatches": minibatches, "stream": stream}[sys.argv[1]]()
print("alike")
