"""What is borrowed of JAX and NumPyro does what it is borrowed for."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.primitives import Messenger

from ppl_dgp.gp.numpyro_internals import bijections_of, forward, handlers_in_force, svi_with
from ppl_dgp.numerics.compatibility import input_dependencies, is_traced, program_identity


def test_dependencies_pass_through_calls_and_loops():
    @jax.jit
    def inner(a, b):
        return a + 1.0, b * 2.0

    def program(values):
        first, second = inner(values["a"], values["b"])
        third = jax.lax.fori_loop(0, 2, lambda i, carry: carry + values["c"], first)
        return {"x": first, "y": second, "z": third, "none": jnp.ones(())}

    reached = input_dependencies(program, dict.fromkeys("abc", jnp.ones(())))
    assert reached == {"x": {"a"}, "y": {"b"}, "z": {"a", "c"}, "none": set()}


def test_programs_are_one_where_their_text_and_inner_arrays_agree():
    def identity(shift, factor):
        held = np.full(3, factor)
        inner = jax.jit(lambda x: x * held)
        return program_identity(
            jax.make_jaxpr(lambda x: inner(x) + shift)(jnp.ones(3)), lambda array: np.asarray(array).tobytes()
        )

    assert identity(1.0, 2.0) == identity(1.0, 2.0) != identity(1.5, 2.0)


def test_what_is_traced_is_told_from_what_is_known():
    seen = []
    jax.make_jaxpr(lambda x: seen.append(is_traced(x)) or x)(1.0)
    assert seen == [True] and not is_traced(jnp.ones(()))


class Noted(Messenger):
    def __init__(self, name, stop=False):
        super().__init__()
        self.name, self.stop, self.heard = name, stop, []

    def process_message(self, msg):
        self.heard.append("process")
        if self.stop:
            msg["stop"] = True

    def postprocess_message(self, msg):
        self.heard.append("postprocess")


def test_a_message_is_forwarded_as_numpyro_does():
    for stopping in (False, True):
        outer, inner = Noted("outer"), Noted("inner", stopping)
        with outer, inner:
            handlers = handlers_in_force()[-2:]
            assert handlers == (outer, inner)
            numpyro.sample("a", dist.Normal(0.0, 1.0), obs=jnp.ones(()))
        by_numpyro = outer.heard.copy(), inner.heard.copy()
        outer.heard, inner.heard = [], []
        forward({"type": "sample", "name": "a"}, handlers)
        assert (outer.heard, inner.heard) == by_numpyro
    forward({"type": "sample"}, ())


def test_an_svi_with_another_part_keeps_its_bijections():
    def model():
        numpyro.param("s", 2.0, constraint=dist.constraints.positive)

    svi = SVI(model, model, numpyro.optim.Adam(0.1), Trace_ELBO())
    svi.init(jax.random.PRNGKey(0))
    other = svi_with(svi, loss=Trace_ELBO(3))
    assert other.loss.num_particles == 3 and svi.loss.num_particles == 1
    assert bijections_of(other) is bijections_of(svi) and float(bijections_of(svi)["s"](0.0)) == 1.0
