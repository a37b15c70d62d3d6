"""What is saved comes back bit for bit; what is damaged or of something else is named in one line."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ppl_dgp import checkpoint
from ppl_dgp.checkpoint import CheckpointError, load, read_meta, save


def state():
    params = {"layer1/u_loc": jnp.arange(6.0).reshape(3, 2), "scale": jnp.float32(1 / 3)}
    return {
        "params": params,
        "optimiser": optax.adam(0.1).init(params),
        "key": jax.random.key(5),
        "raw": jax.random.PRNGKey(6),
        "kinds": [
            np.int8(3),
            np.zeros((0, 2)),
            np.array([True, False]),
            np.arange(4.0)[::2],
            np.asfortranarray(np.eye(3)),
        ],
    }


def test_round_trip_keeps_structure_bits_and_dtypes(tmp_path):
    before = state()
    save(tmp_path / "new" / "run", before, {"step": 3, "name": "é"})
    after, meta = load(tmp_path / "new" / "run", before)
    assert meta == read_meta(tmp_path / "new" / "run") == {"step": 3, "name": "é"}
    assert str(jax.tree.structure(after)) == str(jax.tree.structure(before))
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(jax.random.normal(after["key"]), jax.random.normal(before["key"]))


def test_without_a_pattern_names_lead_to_arrays(tmp_path):
    save(tmp_path, {"params": {"layer1/u": jnp.ones(2)}, "losses": [jnp.zeros(1)]}, {})
    found, _ = load(tmp_path)
    assert set(found) == {"params/layer1/u", "losses/0"}
    save(tmp_path, jnp.ones(2), {})
    np.testing.assert_array_equal(load(tmp_path, jnp.zeros(2))[0], jnp.ones(2))


def test_64_bits_come_back_under_32(tmp_path):
    save(tmp_path, {"a": jnp.array([1 / 3])}, {})
    with jax.enable_x64(False):
        assert load(tmp_path)[0]["a"].dtype == jnp.float64


def test_only_two_plain_files_and_no_pickle(tmp_path):
    for turn in range(3):
        save(tmp_path, {"a": jnp.full(2, turn)}, {"turn": turn})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2 and names[0] == "checkpoint.json" and names[1].endswith(".safetensors")
    assert json.loads((tmp_path / "checkpoint.json").read_text())["meta"] == {"turn": 2}
    assert load(tmp_path)[0]["a"].tolist() == [2, 2]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_save_that_fails_leaves_the_former_state(tmp_path, monkeypatch, failing):
    save(tmp_path, {"a": jnp.zeros(2)}, {"turn": 0})
    calls, replace = [], os.replace

    def stop(source, target):
        calls.append(target)
        if len(calls) == failing:
            raise OSError("disk full")
        replace(source, target)

    monkeypatch.setattr(checkpoint.os, "replace", stop)
    with pytest.raises(OSError, match="disk full"):
        save(tmp_path, {"a": jnp.ones(2)}, {"turn": 1})
    monkeypatch.undo()
    found, meta = load(tmp_path)
    assert meta == {"turn": 0} and found["a"].tolist() == [0, 0]
    assert not list(tmp_path.glob(".*"))


def remove_index(folder):
    (folder / "checkpoint.json").unlink()


def remove_data(folder):
    next(folder.glob("*.safetensors")).unlink()


def flip_a_bit(folder):
    path = next(folder.glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_index(folder):
    path = folder / "checkpoint.json"
    path.write_text(path.read_text()[:40])


def empty_index(folder):
    (folder / "checkpoint.json").write_text("[]")


def binary_index(folder):
    (folder / "checkpoint.json").write_bytes(b"\xff\xfe")


def future_format(folder):
    (folder / "checkpoint.json").write_text('{"format": 99}')


def lead_elsewhere(folder):
    path = folder / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data": "../other.safetensors"}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_index, "no checkpoint in"),
        (remove_data, "cannot be read"),
        (flip_a_bit, "is damaged"),
        (cut_index, "is damaged"),
        (empty_index, "is damaged"),
        (binary_index, "is damaged"),
        (future_format, "found format 99, expected 2"),
        (lead_elsewhere, "is damaged"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path, damage, message):
    save(tmp_path, {"a": jnp.ones(3)}, {})
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"b": np.ones(3)}, "'a' is only in the checkpoint"),
        ({"a": np.ones(3), "b": np.ones(1)}, "'b' is missing from the checkpoint"),
        ({"a": np.ones(4)}, r"'a': found float64\(3,\), expected float64\(4,\)"),
        ({"a": np.ones(3, np.float32)}, r"expected float32\(3,\)"),
    ],
)
def test_a_state_of_something_else_is_an_error(tmp_path, like, message):
    save(tmp_path, {"a": jnp.ones(3)}, {})
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path, like)


def test_what_cannot_be_saved_is_an_error_and_writes_nothing(tmp_path):
    with pytest.raises(ValueError, match="two leaves of the name 'a/b'"):
        save(tmp_path / "run", {"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}}, {})
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path / "run", {}, {"loss": float("nan")})
    assert not (tmp_path / "run").exists()
