"""The persistent compilation cache: on by default, the user's choice first, found by a second process."""

import json
import os
import subprocess
import sys

import pytest

IN_CONTEXT = """
import json, jax, numpy as np
from ppl_dgp import Guide, PowerEP, fit_svi, sparse_gp_regression
x = np.random.default_rng(0).normal(size=(4, 1))
model = sparse_gp_regression(4, train_inducing=False)
with jax.enable_x64(True):
    fit = fit_svi(jax.random.PRNGKey(0), model, Guide(model), PowerEP(0.0), x, np.sin(x), steps=1)
print(json.dumps([sorted(np.asarray(fit.params["gp/inducing"])[:, 0].tolist()), sorted(x[:, 0].tolist())]))
"""
CHOICE = """
import json, jax, ppl_dgp.fit
c = jax.config
print(json.dumps([c.jax_compilation_cache_dir, c.jax_persistent_cache_min_compile_time_secs]))
"""
FIT = """
import json, jax, numpy as np
counted = {"hits": 0, "misses": 0}
def heard(event, **about):
    name = event.rsplit("/", 1)[-1]
    if name in ("cache_hits", "cache_misses"):
        counted[name[6:]] += 1
jax.monitoring.register_event_listener(heard)
from ppl_dgp import Guide, PowerEP, fit_svi, sparse_gp_regression
x = np.linspace(0.0, 1.0, 20)[:, None]
model = sparse_gp_regression(5)
fit_svi(jax.random.PRNGKey(0), model, Guide(model), PowerEP(0.0), x, np.sin(6.0 * x), steps=2)
print(json.dumps(counted))
"""


def run(program, home, **settings):
    """What a process prints last, whose cache directory is ``home``."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    env = own | {"XDG_CACHE_HOME": str(home)} | settings
    found = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow
def test_64_bits_in_a_context_reach_the_host(tmp_path):
    """The inducing inputs, found on the host from within a compiled start, are the rows to the last digit."""
    found, expected = run(IN_CONTEXT, tmp_path)
    assert found == expected


@pytest.mark.slow
def test_the_users_choice_stands(tmp_path):
    folder, least = run(CHOICE, tmp_path)
    assert folder.startswith(str(tmp_path / "ppl_dgp" / "compiled")) and least == 0.0
    assert run(CHOICE, tmp_path, JAX_COMPILATION_CACHE_DIR="/elsewhere")[0] == "/elsewhere"
    assert run(CHOICE, tmp_path, JAX_ENABLE_COMPILATION_CACHE="false")[0] is None
    assert run(CHOICE, tmp_path, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="2")[1] == 2.0
    # a file where the folder should be
    (tmp_path / "file").write_text("")
    assert run(CHOICE, tmp_path / "file")[0] is None


@pytest.mark.slow
def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    first, second = (run(FIT, tmp_path) for _ in range(2))
    assert first["misses"] > 5
    # what calls the host, for k-means, is never kept
    assert second["misses"] <= 2 and second["hits"] >= first["misses"] - 2


FIRST = """
import json, jax, numpy as np
jax.config.update("jax_enable_compilation_cache", False)
from ppl_dgp import Guide, PowerEP, fit_svi
from ppl_dgp.models.deep_gp import deep_gp
counted = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **about: counted.append(event.endswith("/backend_compile_duration"))
)
x = np.random.default_rng(0).normal(size=(40, 2))
model = deep_gp((2,), 20)
fit_svi(jax.random.PRNGKey(0), model, Guide(model), PowerEP(0.0), x, np.sin(x[:, :1]), steps=2)
print(json.dumps(sum(counted)))
"""


@pytest.mark.slow
def test_a_first_fit_compiles_few_programs(tmp_path):
    """A key's words, the start, copies of it, the steps, the parameters, the best of the restarts, the jitter."""
    assert run(FIRST, tmp_path) <= 15
