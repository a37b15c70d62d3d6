"""Fits as files: one file of safetensors, whose header holds as JSON what is no array, and a format number.

Nothing is pickled, and a file is complete or absent: it is written under a temporary name and moved into place. Models
and guides that are values of this package are made again; of others the file knows that there was one, and they are
passed in.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro.infer import ELBO
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as arrays_to_bytes

from ppl_dgp.checkpoint import CheckpointError, is_count, parsed_json, replace_file
from ppl_dgp.fit.chains import Chains
from ppl_dgp.fit.convergence import Convergence, Leg
from ppl_dgp.fit.encoding import Decoder, Encoder, EncodingError, name_of_value, public_name
from ppl_dgp.fit.result import Fit

FIT_FORMAT = 1
#: what turns the header of a format into that of the next
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
#: the header's entry
ENTRY = "ppl_dgp.fit"


def save_fit(fit: Fit, path: str | os.PathLike[str]) -> None:
    """Write a fit to a file: parameters, losses, model, guide, objective.

    A model that is a closure, or is made of parts outside this package, is not written: pass it to :func:`load_fit`.

    :param fit: what a fit function returned.
    :param path: the file; one that is there is replaced when the new one is complete.
    :raises OSError: if it cannot be written.
    """
    encoder, fields = Encoder(), {}
    parts = {"model": {}, "guide": {"model": fit.model}, "objective": {}}
    for name, known in parts.items():
        fields[name], arrays = _form_of_part(getattr(fit, name), name, known)
        encoder.arrays |= arrays
    for field in dataclasses.fields(fit):
        if field.name == "params" and _are_of_best(fit):
            fields["params"] = {"restart": fit.best}
        elif field.name not in parts:
            fields[field.name] = encoder(getattr(fit, field.name), field.name)
    kind = public_name(type(fit), "fit")
    header = json.dumps({"format": FIT_FORMAT, "type": kind, "fields": fields}, allow_nan=False)
    replace_file(Path(path), arrays_to_bytes(encoder.arrays, metadata={ENTRY: header}))


def _are_of_best(fit: Fit) -> bool:
    """Whether the parameters are those of the best restart, as fitted."""
    stacked = fit.restart_params
    return fit.params.keys() == stacked.keys() and all(
        np.array_equal(np.asarray(value), np.asarray(stacked[name][fit.best]), equal_nan=True)
        for name, value in fit.params.items()
    )


def _form_of_part(value: Any, name: str, known: Mapping[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
    """The form of a model, guide or objective, or where it has none that it is to be given, and why."""
    encoder = Encoder(known)
    try:
        return encoder(value, name), encoder.arrays
    except EncodingError as error:
        return {"given": name, "why": str(error)}, {}


def load_fit(
    path: str | os.PathLike[str],
    *,
    model: Callable[..., Any] | None = None,
    guide: Callable[..., Any] | None = None,
    objective: ELBO | None = None,
) -> Fit:
    """Read what :func:`save_fit` wrote; predictions in a new process are the same to the digit.

    :param path: the file.
    :param model: the model, where the file does not hold it; given, it stands in the place of the file's.
    :param guide: the guide, likewise; one made of rules of this package is in the file.
    :param objective: likewise; one whose α has a schedule is not in the file.
    :raises CheckpointError: if there is no such file, it is damaged, of a later format, or lacks a part
        that is not given.
    """
    header, arrays = _read(Path(path))
    while header["format"] in MIGRATIONS and header["format"] < FIT_FORMAT:
        header = MIGRATIONS[header["format"]](header)
    if header["format"] != FIT_FORMAT:
        raise CheckpointError(
            f"{path}: found format {header['format']}, expected {FIT_FORMAT}; read it with the version of ppl_dgp that "
            "wrote it"
        )
    forms = dict(header["fields"])
    known: dict[str, Any] = {}
    try:
        for name, given in {"model": model, "guide": guide, "objective": objective}.items():
            form = forms.pop(name)
            if given is None and isinstance(form, dict) and "why" in form:
                raise CheckpointError(f"{path}: holds no {name} ({form['why']}); pass {name}= to Fit.load")
            known[name] = Decoder(arrays, known)(form) if given is None else given
        best = forms.pop("params") if "restart" in forms["params"] else None
        decoder = Decoder(arrays, known)
        fields = {name: decoder(form) for name, form in forms.items()}
        if best is not None:
            fields["params"] = _restart(fields["restart_params"], best["restart"])
        kind = name_of_value(header["type"])
        if not (isinstance(kind, type) and issubclass(kind, Fit)):
            raise EncodingError(f"found {header['type']}, expected a Fit")
        _check_fields(fields)
        return kind(**known, **fields)
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; restore it from a copy") from error


def _restart(stacked: Mapping[str, Any], best: Any) -> dict[str, Any]:
    """The parameters of one restart."""
    for name, value in stacked.items():
        if not is_count(best) or best >= len(value):
            raise EncodingError(
                f"found the restart {str(best)[:80]!r} of {len(value)} of {name}, expected one of them"
            )
    return {name: value[best] for name, value in stacked.items()}


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Raise EncodingError unless what says how training went is of the types that a fit has."""
    expected = {
        "params": Mapping, "restart_params": Mapping, "losses": np.ndarray, "jitter": Mapping, "steps": int,
        "best": int, "rejected_steps": int, "seconds": float | int, "compile_seconds": float | int,
        "input_seconds": float | int, "fingerprint": str,
    }  # fmt: skip
    for name, kind in expected.items():
        if name in fields and not isinstance(fields[name], kind):
            raise EncodingError(f"found {type(fields[name]).__name__} as {name}, expected {kind}")
    if not all(isinstance(value, float | int) for value in fields.get("jitter", {}).values()):
        raise EncodingError("found a jitter that is no number")
    if not isinstance(chains := fields.get("chains"), Chains | None):
        raise EncodingError(f"found {type(chains).__name__} as chains, expected Chains or None")
    if not isinstance(convergence := fields.get("convergence"), Convergence | None):
        raise EncodingError(
            f"found {type(convergence).__name__} as convergence, expected Convergence or None"
        )
    path = fields.get("path", ())
    if not isinstance(path, tuple) or not all(isinstance(leg, Leg) for leg in path):
        raise EncodingError("found a path that is not of legs")
    losses = fields["losses"]
    if losses.ndim != 2 or losses.dtype.kind != "f" or not 0 <= fields["best"] < len(losses):
        raise EncodingError(
            f"found losses {losses.dtype}{losses.shape} and the best of number {fields['best']}"
        )
    for group in ("params", "restart_params"):
        for name, value in fields[group].items():
            if not isinstance(value, np.ndarray | jax.Array):
                raise EncodingError(f"found {type(value).__name__} as {group}/{name}, expected an array")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with safe_open(path, framework="numpy") as file:
            header = parsed_json((file.metadata() or {})[ENTRY])
            arrays = {name: file.get_tensor(name) for name in file.keys()}
        if not isinstance(header["format"], int) or not isinstance(header["fields"], dict):
            raise TypeError
    except OSError as error:
        found = "a directory" if path.is_dir() else f"nothing to read ({error.strerror or 'no such file'})"
        remedy = (
            "a run of the command line is read by `ppl-dgp predict`" if path.is_dir() else "check the path"
        )
        raise CheckpointError(f"{path}: found {found}, expected a file of Fit.save; {remedy}") from None
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{path}: found no fit, expected a file of Fit.save; check the path, or restore it from a copy"
        ) from None
    return header, arrays
