"""Files from strangers: mutations of valid files, each of which loads or is refused in one line.

    python -m benchmarks.strangers --kinds csv,npz --mutations 2000 --command-line 50 --out strangers.csv

Of each kind so many mutations are read in one process, where memory is measured and everything is noticed that is
unpickled, started or written outside of the file's directory; so many others go through the command line, every tenth
in a process of its own. With ``--out`` a row is appended for every case, and cases that have a row are left out. Prints
how the cases ended; exits with 1 if any ended in anything else than a value or a refusal.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks import rows as table
from benchmarks.strangers_files import KINDS, make_valid
from benchmarks.strangers_readers import BUDGET, in_process, through_command_line
from benchmarks.strangers_runs import SEED, make_case
from benchmarks.strangers_tricks import make_bombs

#: bytes that resident memory may grow by, and of addresses that a process may take beyond what it has at its start
MOST_GROWTH, MOST_ADDRESSES = 2**30, 4 * 2**30
FIELDS = ("kind", "way", "number", "outcome", "detail", "seconds", "growth")
FINE = ("loaded", "refused")


@contextlib.contextmanager
def watched(case: Path, noticed: list[str]) -> Iterator[None]:
    """Notice what is unpickled, started, or opened for writing elsewhere."""
    active, inside, temporary = True, str(case), tempfile.gettempdir()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if not active:
            return
        if event in ("pickle.find_class", "os.system", "os.exec", "socket.connect"):
            noticed.append(f"{event} {args!r}")
        elif event == "open" and isinstance(args[0], str) and isinstance(args[2], int):
            place = os.path.realpath(args[0])
            writes = args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if (
                writes
                and not place.startswith((inside, "/dev/null"))
                and Path(place).parent != Path(temporary)
            ):
                noticed.append(f"wrote {place}")

    sys.addaudithook(hook)
    try:
        yield
    finally:
        active = False


def resident(what: str) -> int:
    """Bytes of memory of this process now ("VmRSS"), or at most since it was last asked to forget ("VmHWM")."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (line,) = [line for line in status.read_text().splitlines() if line.startswith(what)]
    return int(line.split()[1]) * 1024


def snapshot(folder: Path) -> str:
    """What is in a folder: names and contents."""
    found = [(str(p), p.read_bytes() if p.is_file() else b"") for p in sorted(folder.rglob("*"))]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _work(root: Path, valid: Path, asked: Connection) -> None:
    """A process that makes cases one after another."""
    os.chdir(root)
    case, outside = root / "case", root / "outside"
    for kind in ("csv", "parquet", "npz", "npy", "netcdf", "safetensors"):
        for path in sorted((valid / kind).iterdir()):
            in_process(kind, path)
    addresses = resident("VmSize") + MOST_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (addresses, resource.RLIM_INFINITY))
    # one hook for the life of the process: hooks cannot be taken away
    noticed: list[str] = []
    with watched(root / "case", noticed):
        asked.send("ready")
        while (wanted := asked.recv()) is not None:
            kind, way, number = wanted
            shutil.rmtree(case, ignore_errors=True)
            commands = way == "command"
            path = make_case(kind, number + commands * 10**6, valid, case, commands)
            before, kept = resident("VmRSS"), snapshot(outside)
            if os.access("/proc/self/clear_refs", os.W_OK):
                Path("/proc/self/clear_refs").write_text("5")
            noticed.clear()
            began = time.perf_counter()
            if way == "process":
                ended, detail = in_process(kind, path)
            else:
                ended, detail = through_command_line(kind, number, path, valid)
            seconds, growth = time.perf_counter() - began, resident("VmHWM") - before
            if snapshot(outside) != kept:
                ended, detail = "wrote outside", detail
                shutil.rmtree(outside)
                _fill(outside)
            elif noticed:
                ended, detail = "acted", "; ".join(noticed[:3])
            elif growth > MOST_GROWTH:
                ended = "grew"
            asked.send((ended, detail, seconds, growth))


def _fill(outside: Path) -> None:
    outside.mkdir()
    (outside / "kept.txt").write_text("what must stay as it is\n")


class Campaign:
    """Cases made one after another in a process, which is replaced when it hangs or dies."""

    def __init__(self, root: Path) -> None:
        self.root, self.valid = root, root / "valid"
        self.context, self.worker = multiprocessing.get_context("spawn"), None
        _fill(root / "outside")

    def outcome(self, kind: str, way: str, number: int) -> tuple[str, str, float, int]:
        """How one case ends, after how many seconds, and by how many bytes memory grew."""
        if self.worker is None or not self.worker.is_alive():
            self.ask, end = self.context.Pipe()
            self.worker = self.context.Process(target=_work, args=(self.root, self.valid, end), daemon=False)
            self.worker.start()
            end.close()
            self.ask.recv()
        began = time.perf_counter()
        self.ask.send((kind, way, number))
        try:
            if self.ask.poll(BUDGET[way]):
                return self.ask.recv()
            ended = "hang"
        except EOFError:
            self.worker.join()
            ended = f"died with {self.worker.exitcode}"
        self.close(kill=True)
        return ended, "", time.perf_counter() - began, 0

    def close(self, kill: bool = False) -> None:
        """End the process."""
        if self.worker is not None:
            if kill:
                self.worker.kill()
            else:
                self.ask.send(None)
            self.worker.join()
            self.worker = None


def main() -> int:
    """Run the campaign; 1 if a case neither loads nor is refused."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--command-line", type=int, default=50)
    parser.add_argument("--only", type=int, help="one number alone, printed in full")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--valid", type=Path, help="where valid files are kept for the next time")
    settings = parser.parse_args()
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    # hold on to this campaign's own files
    with tempfile.TemporaryDirectory(prefix="strangers-") as name:
        return _campaign(Path(name).resolve(), settings)


def _campaign(root: Path, settings: argparse.Namespace) -> int:
    began, done = time.perf_counter(), {}
    kept = settings.valid
    if kept is None or not kept.exists():
        make_valid(root / "valid")
        make_bombs(root / "valid" / "bombs")
        if kept is not None:
            shutil.copytree(root / "valid", kept)
    else:
        shutil.copytree(kept, root / "valid")
    if settings.out is not None:
        done = {(row["kind"], row["way"], int(row["number"])): row for row in table.read(settings.out)}
    ways = {"process": settings.mutations, "command": settings.command_line}
    cases = [
        (k, way, n) for k in settings.kinds.split(",") for way, count in ways.items() for n in range(count)
    ]
    if settings.only is not None:
        cases = [case for case in cases if case[2] == settings.only]
    campaign = Campaign(root)
    for case in cases:
        if case in done:
            continue
        ended, detail, seconds, growth = campaign.outcome(*case)
        if settings.only is None:
            detail = " ".join(detail.split())[:300]
        detail = detail.encode(errors="backslashreplace").decode()
        values = (*map(str, case), ended, detail, f"{seconds:.3f}", str(growth))
        done[case] = dict(zip(FIELDS, values, strict=True))
        if settings.out is not None:
            table.append(settings.out, FIELDS, values)
        if ended not in FINE or settings.only is not None:
            print(
                f"{case[0]} {case[1]} {case[2]}: {ended} in {seconds:.1f} s, {growth >> 20} MiB: {detail}",
                flush=True,
            )
    campaign.close()
    return _report([done[case] for case in cases], time.perf_counter() - began)


def _report(rows: list[dict[str, str]], seconds: float) -> int:
    for kind, way in dict.fromkeys((row["kind"], row["way"]) for row in rows):
        these = [row for row in rows if (row["kind"], row["way"]) == (kind, way)]
        count = Counter(row["outcome"] for row in these)
        most, longest = (max(float(row[name]) for row in these) for name in ("growth", "seconds"))
        print(
            f"{kind:12}{way:8}{len(these):5}: {', '.join(f'{n} {name}' for name, n in count.most_common())}; "
            f"memory grew by at most {most / 2**20:.0f} MiB, the longest took {longest:.1f} s"
        )
    wrong = sum(row["outcome"] not in FINE for row in rows)
    print(f"{len(rows)} cases of seed {SEED}, {wrong} neither loaded nor refused; {seconds:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
