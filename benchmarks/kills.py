"""Fits that are killed at random moments and resumed: each ends bit for bit as one that was never stopped.

    python -m benchmarks.kills --kills 200 --out kills.csv

Half of the fits are the command line's, half calls from Python. A third of the kills strike inside a write: before a
file is opened, moved or removed, or when some bytes of it are written; the others at a moment of the whole run or of
its training. A fit is killed up to eight times. After each kill what is saved must be whole, of the last save that was
begun or completed, and at most one save interval behind; no file that was being written may be read; at the end every
array of the state, the parameters, the losses and the files must be those of a fit alone, and no other file be there.

A row is appended for every kill and every end as soon as it is known, and fits whose end has a row are left out: it
goes on where it was stopped. Exits with 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import append, read

FIELDS = ("fit", "kind", "killed", "where", "done", "saved", "interval", "outcome", "detail", "seconds")
MOST_KILLS, LONGEST = 8, 1800.0
CHUNK, EVERY = 20, 3  # steps, and chunks between saves, of the fits from Python
#: differs from run to run, as it should
TIMES = ("seconds", "steps_per_second", "input_seconds")
COMMANDS = {
    "sparse-gp": ["--model", "sparse-gp", "--inducing", "6", "--steps", "1500", "--alpha", "0.5"],
    "deep-gp": ["--model", "deep-gp", "--widths", "1", "--inducing", "5", "--steps", "600", "--hidden", "mean-field"],
    "gp": ["--model", "gp", "--steps", "60"],
    "stream": ["--stream", "--model", "sparse-gp", "--inducing", "6", "--steps", "1000", "--batch", "10"],
}  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a process ended, what it noted, and when, in seconds from its start."""

    killed: bool
    error: str
    notes: list[tuple[float, str, str]]
    seconds: float

    def last(self, what: str) -> str | None:
        """The last note of a kind."""
        return next((value for _, name, value in reversed(self.notes) if name == what), None)


def table() -> tuple[np.ndarray, np.ndarray]:
    """Forty rows of a smooth function and noise."""
    random = np.random.default_rng(0)
    x = random.uniform(-1.0, 1.0, (40, 1))
    return x, np.sin(4.0 * x) + 0.1 * random.normal(size=x.shape)


def from_python(kind: str, folder: Path) -> None:
    """Fit as a script does that resumes what it finds; notes a digest of what comes out."""
    import jax

    from ppl_dgp.checkpoint import INDEX
    from ppl_dgp.data.batches import open_rows
    from ppl_dgp.fit import fit_lbfgs, fit_many, fit_stream, fit_svi
    from ppl_dgp.guides import Guide, MeanField
    from ppl_dgp.models import deep_gp, exact_gp_regression, sparse_gp_regression
    from ppl_dgp.objectives import PowerEP

    x, y = table()
    key, sparse, deep = jax.random.PRNGKey(0), sparse_gp_regression(5), deep_gp((1,), 4)
    guide, bound, power = Guide(sparse), PowerEP(0.0), PowerEP(0.5)
    how: dict[str, Any] = {"checkpoint": folder, "resume": any(folder.rglob(INDEX))}
    if kind != "lbfgs":
        how |= {"steps": 400, "chunk": CHUNK, "checkpoint_every": EVERY}
    fits = {
        "svi": lambda: fit_svi(key, sparse, guide, bound, x, y, **how),
        "minibatches": lambda: fit_svi(key, sparse, guide, power, x, y, batch_size=8, **how),
        "restarts": lambda: fit_svi(key, deep, Guide(deep, hidden=MeanField()), bound, x, y, restarts=2, **how),
        "rows": lambda: fit_stream(key, sparse, guide, bound, open_rows((x, y), block_rows=8), batch_size=8, **how),
        "many": lambda: fit_many(key, sparse, guide, power, x, y, alphas=[0.0, 0.5, 1.0], **how),
        "lbfgs": lambda: fit_lbfgs(key, exact_gp_regression(), x, y, steps=80, **how),
    }  # fmt: skip
    found: Any = fits[kind]()
    digest = hashlib.sha256()
    for fit in found if isinstance(found, list) else [found]:
        for array in (*(fit.params[name] for name in sorted(fit.params)), fit.losses):
            digest.update(np.asarray(array).tobytes())
    print("result", digest.hexdigest())


KINDS = [("python", kind) for kind in ("svi", "minibatches", "restarts", "rows", "many", "lbfgs")]
KINDS += [("cli", kind) for kind in COMMANDS]


def child(how: str, kind: str, folder: Path, log: Path, strike: int, seed: int) -> None:
    """Fit, or go on with the fit in ``folder``, and note what is done; die at the write of number ``strike``."""
    notes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(str(log) + ".said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(1, 2)
    began = time.perf_counter()

    def note(what: str, value: Any) -> None:
        os.write(notes, f"{time.perf_counter() - began}\t{what}\t{value}\n".encode())

    watch(folder, note, strike, np.random.default_rng(seed))
    if how == "python":
        from_python(kind, folder)
    else:
        from ppl_dgp.cli import run_directory
        from ppl_dgp.cli.main import main

        resume = ["--resume"] if (folder / run_directory.CONFIG).is_file() else []
        source = str(folder.parent.parent / "table.csv")
        code = main(["fit", source, *COMMANDS[kind], "--out", str(folder), "--quiet", "--json", *resume])
        if code != 0:
            raise SystemExit(code)


def watch(folder: Path, note: Any, strike: int, random: np.random.Generator) -> None:
    """Note steps, saves and the reading of unfinished files; kill this process at its write of number ``strike``."""
    import ppl_dgp.fit.full_batch
    import ppl_dgp.fit.training
    from ppl_dgp import checkpoint

    writes = 0
    within = str(folder)

    def write(what: str, torn: Any = lambda: None) -> None:
        nonlocal writes
        writes += 1
        note("write", what)
        if writes == strike:
            torn()
            os.kill(os.getpid(), signal.SIGKILL)

    def heard(event: str, about: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            return
        path = os.fsdecode(about[0]) if isinstance(about[0], (str, bytes, os.PathLike)) else ""
        if not path.startswith(within):
            return
        if event != "open" or about[2] & (os.O_WRONLY | os.O_RDWR):
            write(f"{event} {Path(path).name}")
        elif checkpoint.UNFINISHED in path[len(within) :] and not os.path.isdir(path):
            note("unfinished file read", path)

    class Torn:
        """A file of which, when struck, a part is written."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, content: Any) -> Any:
            def torn() -> None:
                self.file.write(content[: random.integers(len(content) + 1)])
                self.file.flush()

            write(f"bytes of {Path(self.file.name).name}", torn)
            return self.file.write(content)

    ordinary = Path.open

    def opened(path: Path, mode: str = "r", *args: Any, **settings: Any) -> Any:
        file = ordinary(path, mode, *args, **settings)
        return Torn(file) if "w" in mode and str(path).startswith(within) else file

    save = checkpoint.save

    def saving(place: Any, state: Any, meta: Any) -> None:
        if "step" in meta:
            note(f"begun {place}", meta["step"])
        save(place, state, meta)
        if "step" in meta:
            note(f"saved {place}", meta["step"])

    bar = ppl_dgp.fit.training.progress_bar

    class Watched:
        """The progress bar, which is told of every piece of steps."""

        def __init__(self, *about: Any) -> None:
            self.bar = bar(*about)

        def __enter__(self) -> Any:
            self.bar.__enter__()
            return lambda step, losses: note("did", step)

        def __exit__(self, *error: Any) -> None:
            self.bar.__exit__(*error)

    Path.open = opened  # type: ignore[assignment, method-assign]
    checkpoint.save = saving
    ppl_dgp.fit.training.progress_bar = ppl_dgp.fit.full_batch.progress_bar = Watched  # type: ignore[assignment]
    sys.addaudithook(heard)


def run(how: str, kind: str, folder: Path, moment: float = LONGEST, strike: int = 0, seed: int = 0) -> Ended:
    """One process, killed at a moment or at a write, or when it takes too long."""
    log = folder.parent / "notes"
    log.unlink(missing_ok=True)
    sys.stdout.flush()
    began = time.perf_counter()
    number = os.fork()
    if number == 0:
        code = 1
        try:
            child(how, kind, folder, log, strike, seed)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    while (found := os.waitpid(number, os.WNOHANG))[0] == 0:
        if time.perf_counter() - began > moment:
            os.kill(number, signal.SIGKILL)
            found = os.waitpid(number, 0)
            break
        time.sleep(0.002)
    killed = os.WIFSIGNALED(found[1]) and os.WTERMSIG(found[1]) == signal.SIGKILL
    said = Path(str(log) + ".said")
    text = said.read_text().strip() if said.exists() else ""
    error = "" if killed or found[1] == 0 else (text.splitlines() or ["no word"])[-1]
    lines = [line.split("\t", 2) for line in log.read_text().splitlines()] if log.exists() else []
    notes = [(float(at), what, value) for at, what, value in lines]
    if not killed and text:
        notes.append((time.perf_counter() - began, "result", _without_times(text.splitlines()[-1])))
    return Ended(killed, error, notes, time.perf_counter() - began)


def _without_times(text: str) -> str:
    """JSON without the times that it tells, and without the place it was written to; other text as it is."""
    if not text.startswith("{"):
        return text
    return json.dumps(
        {name: value for name, value in json.loads(text).items() if name not in (*TIMES, "run_directory")}
    )


def files(folder: Path) -> dict[str, str]:
    """A digest of every file, of JSON without the times that it tells."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items() if name not in TIMES}
        return value

    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "in-use.lock":
            content = path.read_bytes()
            if path.suffix == ".json":
                content = json.dumps(plain(json.loads(content))).encode()
            found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def saved_steps(folder: Path) -> dict[str, int]:
    """The step of each saved state; raises ValueError for one that is not whole."""
    found = {}
    for index in folder.rglob("checkpoint.json"):
        about = json.loads(index.read_text())
        content = (index.parent / about["data"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != about["sha256"]:
            raise ValueError(f"{index.parent} is not whole")
        if "step" in about["meta"]:
            found[str(index.parent)] = about["meta"]["step"]
    return found


def lost(before: dict[str, int], after: dict[str, int], ended: Ended, interval: int) -> str:
    """What a kill cost that it must not, in words, if anything."""
    if read := ended.last("unfinished file read"):
        return f"an unfinished file was read: {read}"
    for place in before | after:
        complete, begun = ended.last(f"saved {place}"), ended.last(f"begun {place}")
        allowed = {
            before.get(place) if complete is None else int(complete),
            None if begun is None else int(begun),
        }
        if place in before and complete is not None:
            allowed -= {None}
        if after.get(place) not in allowed:
            return f"found the state of step {after.get(place)}, expected one of {allowed}"
    did = ended.last("did")
    if (
        interval
        and did is not None
        and len(after) < 2
        and int(did) - max(after.values(), default=0) > interval
    ):
        return f"{did} steps were done, and {after} saved"
    return ""


class Campaign:
    """Lone fits of each kind, what they end at, and the fits that are killed, each compared with its lone one."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.seed = place, seed
        self.lone: dict[tuple[str, str], tuple[dict[str, str], str | None, Ended]] = {}
        np.savetxt(place / "table.csv", np.hstack(table()), delimiter=",", header="x,y", comments="")

    def fresh(self, name: str) -> Path:
        """A directory for a fit, not yet made."""
        (self.place / name).mkdir()
        return self.place / name / "run"

    def expected(self, how: str, kind: str) -> tuple[dict[str, str], str | None, Ended]:
        """Files, result and course of a fit alone, made twice; what differs between the two has the digest ``""``."""
        if (how, kind) not in self.lone:
            found = []
            for number in range(2):
                folder = self.fresh(f"{how}-{kind}-{number}")
                ended = run(how, kind, folder)
                if ended.killed or ended.error:
                    raise SystemExit(f"a lone fit of {how} {kind}: {ended.error or 'took too long'}")
                found.append((files(folder), ended.last("result"), ended))
            (first, result, _), (second, other, ended) = found
            if first.keys() != second.keys() or result != other:
                raise SystemExit(f"two lone fits of {how} {kind} differ: {result} and {other}")
            same = {name: digest if second[name] == digest else "" for name, digest in first.items()}
            self.lone[how, kind] = same, result, ended
            told = ", ".join(name for name, digest in same.items() if not digest) or "none"
            print(f"{how} {kind}: {ended.seconds:.1f} s; files that no two fits share: {told}", flush=True)
        return self.lone[how, kind]

    def rows(self, number: int, most: int) -> Any:
        """The kills of a fit, at most ``most``, and its end, a row of the table each."""
        random = np.random.default_rng([self.seed, number])
        how, kind = KINDS[random.choice(6) if number % 2 == 0 else 6 + random.choice(len(COMMANDS))]
        wanted, result, course = self.expected(how, kind)
        interval = CHUNK * EVERY if how == "python" and kind != "lbfgs" else 0
        folder = self.fresh(f"fit-{number}")
        steps = [at for at, what, _ in course.notes if what == "did"]
        writes = sum(what == "write" for _, what, _ in course.notes)
        for _ in range(min(most, int(random.integers(2, MOST_KILLS + 1)))):
            before = saved_steps(folder)
            strike, span = 0, (0.0, course.seconds)
            if random.random() < 0.37:  # some strike no more, for less is left to write
                strike, where = int(random.integers(1, writes + 1)), "write"
            elif random.random() < 0.5:
                span, where = (steps[0], steps[-1]), "training"
            else:
                where = "anywhere"
            moment = LONGEST if strike else float(random.uniform(*span))
            ended = run(how, kind, folder, moment, strike, number)
            about = {
                "fit": number,
                "kind": f"{how} {kind}",
                "where": where,
                "interval": interval or "",
                "killed": 1,
            }
            about |= {"seconds": f"{ended.seconds:.1f}", "done": ended.last("did")}
            if not ended.killed:
                if ended.error:
                    yield about | {"killed": 0, "outcome": "error", "detail": ended.error}
                    return
                break
            try:
                after = saved_steps(folder)
            except (OSError, ValueError) as error:
                yield about | {"outcome": "lost", "detail": repr(error)}
                return
            wrong = lost(before, after, ended, interval)
            if strike:
                about["where"] = f"write: {ended.last('write')}"
            yield about | {
                "saved": max(after.values(), default=0),
                "outcome": "lost" if wrong else "kept",
                "detail": wrong,
            }
        else:
            ended = run(how, kind, folder)
        about = {
            "fit": number,
            "kind": f"{how} {kind}",
            "killed": 0,
            "where": "end",
            "seconds": f"{ended.seconds:.1f}",
        }
        found = files(folder)
        unlike = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != ""
                        and wanted.get(name) != found.get(name)) or sorted(wanted.keys() - found.keys())  # fmt: skip
        if ended.killed or ended.error:
            yield about | {"outcome": "error", "detail": ended.error or "took too long"}
        elif unlike or ended.last("result") != result or ended.last("unfinished file read"):
            yield about | {"outcome": "differs", "detail": f"{unlike} {ended.last('result')}"}
        else:
            yield about | {"outcome": "same", "done": ended.last("did")}


def main() -> int:
    """Run the campaign; 1 if anything was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/kills.csv"))
    settings = parser.parse_args()
    began = time.perf_counter()
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = [*read(settings.out)]
    ended = {int(row["fit"]) for row in rows if row["where"] == "end"}
    rows = [row for row in rows if int(row["fit"]) in ended]
    with tempfile.TemporaryDirectory() as place:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(place) / "compiled")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["MPLBACKEND"] = "agg"
        # most of a start is compilation of what calls the host, which JAX does not keep
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        # imported once, and no backend of JAX begun: a process made by fork starts at once
        from jax._src import xla_bridge

        import ppl_dgp.cli.commands
        import ppl_dgp.cli.streamed
        import ppl_dgp.diagnostics.plots  # noqa: F401

        assert not xla_bridge._backends
        campaign = Campaign(Path(place), settings.seed)
        number = max(ended, default=-1) + 1
        while (made := sum(int(row["killed"]) for row in rows)) < settings.kills:
            for row in campaign.rows(number, settings.kills - made):
                rows.append({name: row.get(name, "") for name in FIELDS})
                append(settings.out, FIELDS, [*rows[-1].values()])
            number += 1
    kills = [row for row in rows if int(row["killed"])]
    ends = [row for row in rows if row["where"] == "end"]
    inside = sum(row["where"].startswith("write") for row in kills)
    behind = [
        int(row["done"]) - int(row["saved"])
        for row in kills
        if row["interval"] and row["done"] and row["saved"]
    ]
    wrong = [row for row in rows if row["outcome"] not in ("kept", "same")]
    for row in wrong:
        print(f"fit {row['fit']}, {row['kind']}, {row['where']}: {row['outcome']}: {row['detail']}")
    print(
        f"{len(kills)} kills, {inside} inside a write, of {len(ends)} fits: {len(wrong)} lost something or ended in "
        f"other numbers; at most {max(behind, default=0)} steps repeated, saved every {CHUNK * EVERY}; "
        f"{time.perf_counter() - began:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
