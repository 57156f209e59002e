"""Samples taken one by one and in turn, each a row of a CSV at once: what hybrid, predict and gpu.sh measure with.

A *way* is one thing to measure: an engine with a plan. Ways are run one after the other, each once, and again in the
opposite order, until each has enough clean samples or the time is up; a change of the machine then hits all alike, and
what was interrupted goes on where it stopped.
"""
import csv
import os
import statistics
import sys
import time
import typing

import machine

FIELDS = ["date", "cpu", "cpus", "flags", "ram_gib", "version", "setting", "model", "test", "way", "share", "ts", "foreign",
          "clean"]


class Way(typing.NamedTuple):
    name: str          # unique within a model and a test
    share: float       # of the weights that the GPU has
    command: list
    read: typing.Callable  # what it wrote -> tokens a second


class Taken(typing.NamedTuple):
    ts: float
    clean: bool


class Book:
    """The samples of one model, test and setting, in a CSV; today's of this version of ours are taken over."""

    def __init__(self, path, setting, model, test, resume):
        self.path, self.setting, self.model, self.test = path, setting, model, test
        self.host, self.version = machine.describe(), machine.git_version()
        self.taken = {}
        if resume and path.exists():
            with open(path, newline="", encoding="utf-8") as f:
                for row in csv.DictReader(f):
                    if self._is_ours(row):
                        self.taken.setdefault(row["way"], []).append(Taken(float(row["ts"]), row["clean"] == "1"))

    def _is_ours(self, row):
        mine = {"cpu": self.host["cpu"], "version": self.version, "setting": self.setting, "model": self.model,
                "test": self.test}
        return row["date"][:10] == time.strftime("%Y-%m-%d") and all(row[k] == v for k, v in mine.items())

    def add(self, way, ts, foreign, clean):
        self.taken.setdefault(way.name, []).append(Taken(ts, clean))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists() or self.path.stat().st_size == 0
        with open(self.path, "a", newline="", encoding="utf-8") as f:
            w = csv.DictWriter(f, FIELDS, lineterminator="\n")
            if new:
                w.writeheader()
            w.writerow({**self.host, "date": time.strftime("%Y-%m-%d %H:%M"), "version": self.version,
                        "setting": self.setting, "model": self.model, "test": self.test, "way": way.name,
                        "share": f"{way.share:.4f}", "ts": f"{ts:.4f}", "foreign": f"{foreign:.3f}", "clean": int(clean)})
            f.flush()
            os.fsync(f.fileno())

    def n_clean(self, name):
        return sum(s.clean for s in self.taken.get(name, []))

    def forget(self, names):
        """What was taken of these is void (the CSV keeps it)."""
        for name in names:
            self.taken.pop(name, None)

    def speeds(self, name, reps):
        """(tokens a second of the samples that count, whether they are clean): clean ones if there are enough, else all."""
        all_of = self.taken.get(name, [])
        clean = [s.ts for s in all_of if s.clean]
        return (clean, True) if len(clean) >= reps else ([s.ts for s in all_of], False)

    def median(self, name, reps):
        """None: never measured."""
        values, _ = self.speeds(name, reps)
        return statistics.median(values) if values else None


def take(book, ways, reps, tries, limit_s, until):
    """Sample the ways in turn. Returns those that could be run; why another could not is told."""
    able, rounds = list(ways), 0

    def wanting():
        return [w for w in able if book.n_clean(w.name) < reps and len(book.taken.get(w.name, [])) < tries]
    while wanting() and time.monotonic() < until:
        for w in (wanting() if rounds % 2 == 0 else wanting()[::-1]):
            if time.monotonic() >= until:
                break
            try:
                out, use = machine.run(w.command, limit_s)
                ts = w.read(out)
            except (RuntimeError, ValueError, KeyError, IndexError) as error:
                print(f"  {book.model}: {w.name} is left out: {error}", file=sys.stderr)
                able.remove(w)
                continue
            book.add(w, ts, use["foreign"], use["clean"])
            print(f"  {book.model} {book.test} {w.name}: {ts:.2f} ({100 * use['foreign']:.0f}% others)", file=sys.stderr,
                  flush=True)
        rounds += 1
    return able


def figure(book, name, reps):
    values, clean = book.speeds(name, reps)
    if not values:
        return "-"
    return f"{'' if clean else '~'}{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f}, n={len(values)})"


def deadline(minutes):
    return time.monotonic() + 60 * minutes if minutes else float("inf")


def add_arguments(a, csv_name, reps):
    """Flags that all of these scripts have."""
    a.add_argument("--reps", type=int, default=reps, help="clean samples wanted of each way")
    a.add_argument("--tries", type=int, default=0, help="samples taken of each at most (default: three times --reps)")
    a.add_argument("--minutes", type=float, default=0, help="end about then, with what there is")
    a.add_argument("--limit", type=float, default=600, help="seconds for one sample")
    a.add_argument("--no-wait", action="store_true", help="do not wait for a quiet moment before each (to try things)")
    a.add_argument("--awake", action="store_true",
                   help="idle processors poll and do not halt, from which virtual machines wake slowly (root)")
    a.add_argument("--resume", action="store_true", help="go on with what this version has measured today")
    a.add_argument("--ours", default=str(machine.HERE.parent / "build/atsinfer"))
    a.add_argument("--csv", type=machine.pathlib.Path, default=machine.HERE / "results" / csv_name)


def set_up(o):
    """What these flags mean for the others here."""
    if o.no_wait:
        machine.WAIT_S = 0
    o.tries = o.tries or 3 * o.reps
    o.ours = machine.pathlib.Path(o.ours).resolve()
    if not o.ours.exists():
        raise RuntimeError(f"{o.ours} is not there: build it, or give --ours")
    o.csv = o.csv.resolve()
    if o.awake:
        machine.keep_awake()


def kept_awake(o):
    """What a setting says of it."""
    return ", awake" if o.awake else ""
