"""Files that somebody else has made, or damaged: each of these once did harm, or ended in an error of another kind."""

import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import h5py
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save as arrays_to_bytes

from ppl_dgp import checkpoint
from ppl_dgp.checkpoint import CheckpointError, alone_in
from ppl_dgp.cli import main, run_directory
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.settings import Settings
from ppl_dgp.data import DataError, Standardiser, load_table, open_rows
from ppl_dgp.diagnostics import load_arviz
from ppl_dgp.fit.encoding import Decoder, EncodingError
from ppl_dgp.fit.files import ENTRY, load_fit
from ppl_dgp.fit.saving import Saving

NUMBERS = np.random.default_rng(0).normal(size=(6, 3))


def refused(kind: type[Exception], match: str, call, *arguments) -> None:
    with pytest.raises(kind, match=match) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)


def header(shape: str, kind: str = "'<f8'") -> bytes:
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (header(f"({10**12}, 3)"), "promises float64 of shape"),
        (header(f"({2**70}, 3)"), "cannot be read as npy"),
        (header("(-6, -3)"), "promises"),
        (header("(True, 18)"), "promises"),
        (header("(" * 60), "cannot be read as npy"),
        (header("(6, 3)", "'|O'"), "objects"),
        (header("(6, 3), 'more': __import__('os').getpid()"), "cannot be read as npy"),
    ],
)
def test_an_npy_is_refused_before_memory_is_taken(tmp_path, content, match):
    (tmp_path / "a.npy").write_bytes(content + NUMBERS.tobytes())
    refused(DataError, match, open_rows, tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("X.npy", content + NUMBERS.tobytes())
        archive.writestr("y.npy", header("(6,)") + NUMBERS[:, 0].tobytes())
    refused(DataError, match.replace("npy", "npz"), load_table, str(tmp_path / "a.npz"))


def test_an_archive_that_expands_a_thousandfold_is_refused(tmp_path):
    rows = 2**27 // 8
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("X.npy", header(f"({rows}, 1)") + bytes(8 * rows))
        archive.writestr("y.npy", header("(6,)") + bytes(48))
    refused(DataError, "expected at most 100 times as many", load_table, str(tmp_path / "a.npz"))


def test_a_parquet_that_expands_a_thousandfold_is_refused(tmp_path):
    table = pa.table({name: np.zeros(2**23) for name in "aby"})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2**23)
    for reader in (load_table, open_rows):
        refused(DataError, "expected at most 100 times as many", reader, str(tmp_path / "a.parquet"))


def test_text_and_lists_that_expand_a_thousandfold_are_refused(tmp_path):
    for column, match in (
        (["x" * 10**6] * 200, "at most 100 times"),
        ([[1.0]] * 200, "is not numeric"),
    ):
        pq.write_table(pa.table({"a": column, "y": np.arange(200.0)}), tmp_path / "a.parquet")
        refused(DataError, match, load_table, str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_numbers_written_as_text_are_numbers(tmp_path, kind):
    table = pa.table({"a": pa.array(["1", "2.5", "1"]).cast(kind), "y": [1.0, 2.0, 3.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert load_table(str(tmp_path / "a.parquet")).X[:, 0].tolist() == [1.0, 2.5, 1.0]


def test_an_array_that_is_not_compressed_is_never_too_large(tmp_path):
    # as many rows as above, and a file as large
    pq.write_table(
        pa.table({"a": np.arange(2.0**21), "y": np.sqrt(np.arange(2.0**21))}),
        tmp_path / "a.parquet",
        use_dictionary=False,
        compression="none",
        row_group_size=2**21,
    )
    assert open_rows(tmp_path / "a.parquet").count == 2**21


@pytest.mark.parametrize(
    "about",
    [b'"text"', b"[" * 10_000, b"{}", b'{"index_columns": 3, "columns": [{}]}', b'{"index_columns": ["no"]}'],
)
def test_what_pandas_wrote_about_a_parquet_is_not_believed(tmp_path, about):
    table = pa.table({"a": NUMBERS[:, 0], "y": NUMBERS[:, 1]}).replace_schema_metadata({b"pandas": about})
    pq.write_table(table, tmp_path / "a.parquet")
    try:
        found = load_table(str(tmp_path / "a.parquet"))
    except DataError as error:
        assert "damaged" in str(error) and "\n" not in str(error)
    else:
        np.testing.assert_array_equal(found.X[:, 0], NUMBERS[:, 0])


@pytest.mark.parametrize("name", [None, "time"])
def test_an_index_of_pandas_is_no_feature(tmp_path, name):
    frame = pd.DataFrame(NUMBERS, columns=["a", "b", "y"], index=pd.Index(range(6, 0, -1), name=name))
    frame.to_parquet(tmp_path / "a.parquet")
    found = load_table(str(tmp_path / "a.parquet"))
    assert found.feature_names == ("a", "b")
    np.testing.assert_array_equal(found.X, NUMBERS[:, :2])


def fill(file: h5py.File) -> None:
    file.create_dataset("posterior/huge", shape=(2**40,), dtype="f8", chunks=(1000,))


def circle(file: h5py.File) -> None:
    file.create_group("posterior")["self"] = file


def elsewhere(file: h5py.File) -> None:
    file["posterior"] = h5py.ExternalLink("other.nc", "/")


def raw(file: h5py.File) -> None:
    file.create_dataset("posterior/raw", shape=(4,), dtype="u1", external=[("other.nc", 0, 4)])


def deep(file: h5py.File) -> None:
    file.create_group("/".join(["posterior", *"a" * 300]))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (fill, "100 times"),
        (circle, "within itself"),
        (elsewhere, "a link"),
        (raw, "another file"),
        (deep, "too deep"),
    ],
)
def test_netcdf_of_other_files_and_without_end(tmp_path, make, match):
    (tmp_path / "other.nc").write_bytes(b"kept from others")
    with h5py.File(tmp_path / "a.nc", "w") as file:
        make(file)
    refused(DataError, match, load_arviz, tmp_path / "a.nc")


def test_netcdf_that_is_damaged(tmp_path):
    refused(DataError, "no file", load_arviz, tmp_path / "a.nc")
    (tmp_path / "a.nc").write_bytes(b"CDF\x01 and no more")
    refused(DataError, "cannot be read as nc", load_arviz, tmp_path / "a.nc")


def changed_index(folder: Path, **values) -> None:
    path = folder / checkpoint.INDEX
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_checkpoint_whose_index_leads_elsewhere(tmp_path):
    checkpoint.save(tmp_path, {"a": jnp.ones(2)}, {})
    for name in ("../other", "/etc/passwd", "..", "", "a\0b", 3, checkpoint.INDEX):
        changed_index(tmp_path, data=name)
        refused(CheckpointError, "is not what a checkpoint holds", checkpoint.load, tmp_path)


@pytest.mark.parametrize(
    "content", [b"", struct.pack("<Q", 2**62), pickle.dumps([1]), b"\x02" + bytes(7) + b"{}x"]
)
def test_arrays_that_are_none_though_their_digest_is_right(tmp_path, content):
    checkpoint.save(tmp_path, {"a": jnp.ones(2)}, {})
    (path,) = tmp_path.glob("state-*")
    path.write_bytes(content)
    changed_index(tmp_path, sha256=checkpoint.hashlib.sha256(content).hexdigest())
    refused(CheckpointError, "does not hold arrays of a fit", checkpoint.load, tmp_path)


def test_a_key_of_another_kind(tmp_path):
    checkpoint.save(tmp_path, {"a": jnp.ones(2, jnp.uint32)}, {})
    changed_index(tmp_path, prng_keys={"a": 3})
    refused(CheckpointError, "is not what a checkpoint holds", checkpoint.load, tmp_path)
    changed_index(tmp_path, prng_keys={"a": "no such"})
    refused(CheckpointError, "does not hold arrays of a fit", checkpoint.load, tmp_path)


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', "{"])
def test_json_that_this_package_never_writes(tmp_path, text):
    with pytest.raises(ValueError, match=r"."):
        checkpoint.parsed_json(text)
    (tmp_path / checkpoint.INDEX).write_text(text)
    refused(CheckpointError, "is not what a checkpoint holds", checkpoint.load, tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / checkpoint.INDEX)
    refused(CheckpointError, "cannot be read", checkpoint.load, tmp_path)


def test_no_link_is_followed_when_a_state_is_written(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.write_text("kept")
    folder.mkdir()
    (folder / f".{checkpoint.INDEX}.{os.getpid()}").symlink_to(outside)
    checkpoint.save(folder, {"a": jnp.ones(2)}, {})
    assert outside.read_text() == "kept"
    for target in (outside, tmp_path / "none"):
        (folder / checkpoint.LOCK).unlink(missing_ok=True)
        (folder / checkpoint.LOCK).symlink_to(target)
        with pytest.raises(CheckpointError, match="a link or no plain file"), alone_in(folder):
            pass
    assert outside.read_text() == "kept" and not (tmp_path / "none").exists()
    (folder / checkpoint.LOCK).unlink()
    os.mkfifo(folder / checkpoint.LOCK)
    with pytest.raises(CheckpointError, match="a link or no plain file"), alone_in(folder):
        pass


def test_a_fit_whose_header_does_what_no_header_may(tmp_path):
    path = tmp_path / "fit.safetensors"
    kept = Path(__file__).with_name("fit_format_1.safetensors").read_bytes()
    size = int.from_bytes(kept[:8], "little")
    entry = json.loads(json.loads(kept[8 : 8 + size])["__metadata__"][ENTRY])
    arrays = checkpoint.arrays_from_bytes(kept)

    def model(x, y=None):
        return None

    def written(**fields) -> None:
        text = json.dumps(entry | {"fields": entry["fields"] | fields})
        path.write_bytes(arrays_to_bytes(arrays, metadata={ENTRY: text}))

    for fields in (
        {"objective": {"name": "ppl_dgp.cli.__main__:main"}},
        {"params": {"restart": 10**6}},
        {"params": {"restart": -1}},
        {"params": {"restart": {}}},
        {"losses": 3},
        {"best": 7},
        {"steps": "x"},
        {"jitter": {"dict": {"gp/jitter": "x"}}},
        {"chains": 3},
        {"restart_params": "x"},
        {"restart_params": {"dict": {"a": "x"}}},
        {"seconds": {"float": "x" * 3}},
    ):
        written(**fields)
        refused(CheckpointError, "cannot be read", lambda: load_fit(path, model=model))
    written()
    assert load_fit(path, model=model).steps == entry["fields"]["steps"]
    path.write_bytes(arrays_to_bytes(arrays, metadata={ENTRY: '{"format": 1, "fields": ' + "[" * 10**5}))
    refused(CheckpointError, "found no fit", load_fit, path)


def test_names_lead_to_models_and_inference_alone():
    # of these the first would run the command line, for to find it is to import it
    for name in (
        "ppl_dgp.cli.__main__:main",
        "ppl_dgp.data.parquet:ParquetSource",
        "ppl_dgp.checkpoint:alone_in",
    ):
        with pytest.raises(EncodingError, match="outside ppl_dgp's models and inference"):
            Decoder({})({"name": name})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory as ``fit`` leaves it, of parameters that are none."""
    units = Standardiser(np.zeros(1), np.ones(1))
    settings = Settings(model="gp", steps=2, inducing=3, precision="float64")
    names = {"source": "rows.csv", "fingerprint": "0", "feature_names": ("a",), "target_names": ("y",)}
    record = Record(settings, **names, x_units=units, y_units=units, num_train=3, num_test=0, status="done")
    run_directory.write(tmp_path / "run", record)
    rows = {"x": np.ones((3, 1)), "y": np.ones((3, 1))}
    run_directory.save_parameters(tmp_path / "run", {"kernel/variance": jnp.ones(())}, rows)
    (tmp_path / "run" / "figures").mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize(
    "edit",
    [
        {"train_rows": 1.5}, {"train_rows": True}, {"train_rows": 10**400}, {"status": "finished"}, {"features": "a"},
        {"features": ["\ud800"]}, {"result": {"elbo": {"deep": 1}}}, {"settings": {"seed": 1.5}},
        {"settings": {"steps": "2"}}, {"settings": {"learning_rate": 10**400}}, {"settings": {"drop_missing": "yes"}},
        {"settings": {"widths": [1.5]}}, {"settings": {"kernel": None}}, {"settings": {"alpha": True}},
        {"settings": {"target": "\ud800"}},
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_other_types_are_refused(run, edit):
    values = json.loads((run / "config.json").read_text())
    if "settings" in edit:
        edit = {"settings": values["settings"] | edit["settings"]}
    (run / "config.json").write_text(json.dumps(values | edit))
    refused(BadInput, "is not what 'ppl-dgp fit' wrote", run_directory.read, run)


def test_settings_too_deep_are_refused(run):
    (run / "config.json").write_text('{"format": 1, "settings": ' + "[" * 10**5)
    refused(BadInput, "is not what 'ppl-dgp fit' wrote", run_directory.read, run)


def test_a_run_directory_is_shown_as_it_is_written(run, capsys):
    values = json.loads((run / "config.json").read_text())
    values |= {"source": "[/red]\x1b[2J\udcff.csv", "result": {"elbo": 1.0, "advice": "[/red]"}}
    (run / "config.json").write_text(json.dumps(values))
    assert main(["show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "[/red]" in shown and "\x1b" not in shown


@pytest.mark.parametrize(
    "name",
    [
        "figures",
        "parameters",
        "checkpoint",
        "config.json",
        ".config.json.1",
    ],
)
def test_links_out_of_a_run_directory_are_refused(run, name):
    outside = run.parent / "outside"
    outside.mkdir()
    entry = run / name
    if entry.is_file():
        shutil.move(entry, outside / "it")
        entry.symlink_to(outside / "it")
    else:
        shutil.rmtree(entry, ignore_errors=True)
        entry.symlink_to(outside)
    refused(BadInput, "a link that leads out of it", run_directory.read, run)
    entry.unlink()
    entry.symlink_to(entry)
    refused(BadInput, "a link that leads out of it|is not a run directory", run_directory.read, run)


def test_links_within_a_run_directory_are_followed(run):
    shutil.move(run / "config.json", run / "kept.json")
    (run / "config.json").symlink_to("kept.json")
    assert run_directory.read(run).status == "done"


def test_a_pipe_in_a_run_directory_is_refused(run):
    os.mkfifo(run / "parameters" / "pipe")
    refused(BadInput, "no plain file", run_directory.read, run)


SOUND = {"gp/variance": np.ones(()), "gp/lengthscale": np.ones(1), "likelihood/noise": np.full((), 0.1)}


@pytest.mark.parametrize(
    ("params", "rows", "match"),
    [
        (SOUND, {}, ""),
        (SOUND | {"gp/lengthscale": np.ones(2)}, {}, "parameters of something else"),
        (SOUND | {"other": np.ones(())}, {}, "parameters of something else"),
        ({"gp/variance": np.ones(())}, {}, "parameters of something else"),
        (SOUND | {"gp/variance": np.array(np.nan)}, {}, "is not finite"),
        (SOUND | {"likelihood/noise": np.array(-1e9)}, {}, "are not finite"),
        (SOUND, {"x": np.ones((4, 1))}, "training/x"),
        (SOUND, {"y": np.ones((3, 1), int)}, "training/y"),
        (SOUND, {"y": np.full((3, 1), np.inf)}, "training/y"),
    ],
)
def test_parameters_of_something_else_are_refused(run, capsys, params, rows, match):
    training = {"x": np.ones((3, 1)), "y": np.ones((3, 1))} | rows
    run_directory.save_parameters(run, params, training)
    (run.parent / "rows.csv").write_text("a,y\n0,1\n1,2\n")
    code, said = main(["predict", str(run), str(run.parent / "rows.csv")]), capsys.readouterr().err.strip()
    assert code == (2 if match else 0) and match in said and "\n" not in said


@pytest.mark.parametrize(
    "about", [{}, {"step": "x"}, {"step": -1}, {"step": True}, {"step": 10**400, "seconds": 1.0}]
)
def test_steps_of_a_state_that_cannot_have_been_taken(tmp_path, about):
    saving = Saving(tmp_path, {"data": "0"})
    checkpoint.save(tmp_path, {"a": jnp.ones(2)}, {"data": "0", "seconds": 1.0} | about)
    refused(CheckpointError, "is damaged: found step", saving.resumable, True)
    checkpoint.save(tmp_path, {"a": jnp.ones(2)}, {"data": "0", "step": 3, "seconds": "x"})
    refused(CheckpointError, "is damaged: found step", saving.resumable, True)
    saving.save({"a": jnp.ones(2)}, step=3, seconds=1.0)
    assert saving.resumable(True)["step"] == 3


def test_a_whole_number_without_end(tmp_path):
    (tmp_path / "a.csv").write_text(f"a,y\n{'9' * 400},1\n2,2\n")
    refused(
        DataError,
        "column .a. .* a whole number of hundreds of digits",
        load_table,
        str(tmp_path / "a.csv"),
    )
