"""What the samples of results/peers.csv say: medians, intervals, ratios, which cells are lost.

A cell is a model and a test. Its best peer is the engine, in whichever setting, with the highest median. The interval of
a median goes from the least to the greatest of under eight samples (five samples: it holds the median with 94%), from
the second least to the second greatest of more (eight: 93%). The ratio's interval is ours over the peer's, least over
greatest to greatest over least. A cell is lost when that lies below 1.0 as a whole.

Decode is also sorted by what memory gave just before and after (bandwidth.c): fast, slow, or mixed where the two
readings differ or lie in between; such machines flip between two modes.
"""
import csv
import os
import pathlib
import re
import statistics

import engines

FIELDS = ["date", "cpu", "cpus", "flags", "ram_gib", "model", "model_bytes", "threads", "test", "engine", "version",
          "n_clean", "median_ts", "min_ts", "max_ts", "samples_ts", "foreign", "clean", "isa", "token_bytes",
          "bandwidth"]
FLOATS = ("F16", "BF16", "F32")
MODES = ("fast", "slow", "mixed")
STREAM_GOAL, STREAM_TYPES, STREAM_N = 0.80, ("Q4_0", "Q8_0", "Q4_K_M"), 5


class Sample:
    """ts: tokens a second; clean: nobody else computed; bandwidth: (before, after) in GB/s, or None."""

    def __init__(self, ts, clean, foreign=0.0, bandwidth=None):
        self.ts, self.clean, self.foreign, self.bandwidth = ts, clean, foreign, bandwidth


def interval(values):
    v = sorted(values)
    return (v[1], v[-2]) if len(v) >= 8 else (v[0], v[-1])


def used(samples, reps):
    """Return (the samples that count, whether they are clean): the clean ones if there are enough, else all."""
    clean = [s for s in samples if s.clean]
    return (clean, True) if len(clean) >= reps else (samples, False)


def median(samples):
    return statistics.median(s.ts for s in samples)


def mode(bandwidth, fast, slow):
    if min(bandwidth) >= fast:
        return "fast"
    return "slow" if max(bandwidth) <= slow else "mixed"


def kind_of(model):
    """The type of weights that a file's name tells."""
    return re.split(r"[-.]", pathlib.Path(model).stem)[-1]


def goal(test, model):
    t = engines.parse_test(test)
    if kind_of(model) in FLOATS:
        return 1.0
    return 1.1 if t.depth or t.kind == "tg" else 1.3


class Cell:
    """samples: engine -> [Sample]; token_bytes: read for one token of decode."""

    def __init__(self, model, test, token_bytes=0.0, isa=""):
        self.model, self.test, self.token_bytes, self.isa, self.samples = model, test, token_bytes, isa, {}

    def compare(self, reps):
        """Return (best peer, ratio, (least, greatest), clean?), or None without ours or any peer."""
        if engines.OURS not in self.samples or len(self.samples) < 2:
            return None
        ours, ours_clean = used(self.samples[engines.OURS], reps)
        peers = {e: used(s, reps) for e, s in self.samples.items() if e != engines.OURS}
        best = max(peers, key=lambda e: median(peers[e][0]))
        theirs, theirs_clean = peers[best]
        (a, b), (c, d) = (interval(s.ts for s in x) for x in (ours, theirs))
        return best, median(ours) / median(theirs), (a / d, b / c), ours_clean and theirs_clean

    def by_mode(self, fast, slow):
        """mode -> engine -> clean samples with a reading."""
        out = {}
        for e, samples in self.samples.items():
            for s in samples:
                if s.clean and s.bandwidth:
                    out.setdefault(mode(s.bandwidth, fast, slow), {}).setdefault(e, []).append(s)
        return out

    def share(self, samples):
        """Median of what decode streams over what memory gave."""
        return statistics.median(s.ts * self.token_bytes / 1e9 / statistics.mean(s.bandwidth) for s in samples)


def verdict(ratio, greatest, wanted):
    if greatest < 1.0:
        return "lost"
    return "below 1.0" if ratio < 1.0 else "below the goal" if ratio < wanted else ""


def row_of(cell, engine, version, host, model_bytes, threads, reps):
    """The CSV row of an engine in a cell."""
    samples = cell.samples[engine]
    v = [s.ts for s in used(samples, reps)[0]]
    read = [s.bandwidth for s in samples if s.bandwidth]
    return {**host, "model": cell.model, "model_bytes": model_bytes, "threads": threads, "test": cell.test,
            "engine": engine, "version": version, "n_clean": sum(s.clean for s in samples),
            "median_ts": f"{statistics.median(v):.2f}", "min_ts": f"{min(v):.2f}", "max_ts": f"{max(v):.2f}",
            "samples_ts": " ".join(f"{s.ts:.2f}" for s in samples),
            "foreign": " ".join(f"{s.foreign:.3f}" for s in samples),
            "clean": " ".join(str(int(s.clean)) for s in samples), "isa": cell.isa,
            "token_bytes": f"{cell.token_bytes:.0f}", "bandwidth": " ".join(f"{a:.1f}/{b:.1f}" for a, b in read)}


def samples_of(row):
    """The samples of a CSV row, those of older ones too, which tell neither clean nor bandwidth."""
    ts = [float(x) for x in row["samples_ts"].split()]
    foreign = [float(x) for x in row["foreign"].split()]
    clean = [x == "1" for x in (row["clean"] or "").split()] or [f < 0.03 for f in foreign]
    read = [tuple(float(x) for x in pair.split("/")) for pair in (row["bandwidth"] or "").split()] or [None] * len(ts)
    return [Sample(*s) for s in zip(ts, clean, foreign, read)]


def load(path, keep):
    """The cells of the rows for which keep(row) holds, in their order; of equal rows their samples are put together."""
    cells = {}
    if path.exists():
        with open(path, newline="", encoding="utf-8") as f:
            for row in filter(keep, csv.DictReader(f)):
                key = (row["model"], row["test"], row["isa"] or "", row["threads"])
                cell = cells.setdefault(key, Cell(row["model"], row["test"], float(row["token_bytes"] or 0), row["isa"]))
                cell.samples.setdefault(row["engine"], []).extend(samples_of(row))
    return list(cells.values())


def done(path, keep, version):
    """{(model, test): date} of the latest row of ours in this version for which keep(row) holds."""
    if not path.exists():
        return {}
    with open(path, newline="", encoding="utf-8") as f:
        return {(r["model"], r["test"]): r["date"] for r in csv.DictReader(f)
                if r["engine"] == engines.OURS and r["version"] == version and keep(r)}


def append(path, rows):
    """Add rows to the CSV at once, so that an interrupted run loses no finished cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists() or path.stat().st_size == 0
    with open(path, "a", newline="", encoding="utf-8") as f:
        w = csv.DictWriter(f, FIELDS, lineterminator="\n")
        if new:
            w.writeheader()
        w.writerows(rows)
        f.flush()
        os.fsync(f.fileno())


def figure(samples, reps):
    s, clean = used(samples, reps)
    return f"{'' if clean else '~'}{median(s):.1f} ({min(x.ts for x in s):.0f}-{max(x.ts for x in s):.0f}, n={len(s)})"


def speed_lines(cells, reps):
    names = [engines.OURS, *(e for e in engines.PEERS if any(e in c.samples for c in cells))]
    yield "| model | test | " + " | ".join(names) + " | best peer | ours / it | interval | |"
    yield "|---" * (len(names) + 6) + "|"
    for c in cells:
        got = c.compare(reps)
        columns = [figure(c.samples[e], reps) if e in c.samples else "-" for e in names]
        last = ["-", "-", "-", ""]
        if got:
            best, ratio, (a, b), clean = got
            last = [best, f"{'' if clean else '~'}{ratio:.2f}", f"{a:.2f}-{b:.2f}", verdict(ratio, b, goal(c.test, c.model))]
        yield "| " + " | ".join([c.model, c.test, *columns, *last]) + " |"


def stream_lines(cells, fast, slow):
    yield "| model | test | engine | memory | n | tok/s | GB/s | share |"
    yield "|---|---|---|---|---|---|---|---|"
    for c in cells:
        found = c.by_mode(fast, slow)
        for m in (m for m in MODES if m in found):
            for e, s in found[m].items():
                given = statistics.median(statistics.mean(x.bandwidth) for x in s)
                yield (f"| {c.model} | {c.test} | {e} | {m} ({given:.0f} GB/s) | {len(s)} | {median(s):.1f} | "
                       f"{median(s) * c.token_bytes / 1e9:.1f} | {100 * c.share(s):.0f}% |")


def summary_lines(cells, reps, fast, slow):
    """What is lost, what is below its goal, and the share of the read bandwidth."""
    judged = [(c, c.compare(reps)) for c in cells]
    lists = {"lost": [], "below 1.0": [], "below the goal": []}
    for c, got in judged:
        word = verdict(got[1], got[2][1], goal(c.test, c.model)) if got else ""
        if word:
            lists[word].append(f"{c.model} {c.test} {got[1]:.2f} ({got[0]})")
    n = sum(g is not None for _, g in judged)
    yield f"{n} cells compared, {sum(not g[3] for _, g in judged if g)} of them without {reps} clean samples a side (~)."
    yield f"Lost (the interval lies below 1.0): {'; '.join(lists['lost']) or 'none'}."
    yield f"Below 1.0, not lost: {'; '.join(lists['below 1.0']) or 'none'}."
    yield f"Below the goal: {'; '.join(lists['below the goal']) or 'none'}."
    yield from stream_summary(cells, fast, slow)


def stream_summary(cells, fast, slow):
    rows = [c for c in cells if c.model.startswith("dense1b") and c.test.startswith("tg") and "@" not in c.test]
    for c in (c for c in rows if kind_of(c.model) in STREAM_TYPES):
        found = {m: e[engines.OURS] for m, e in c.by_mode(fast, slow).items() if engines.OURS in e}
        said = [f"{m} {100 * c.share(found[m]):.0f}%" + ("" if len(found[m]) >= STREAM_N else f" (only {len(found[m])} samples)")
                if m in found else f"{m} never met" for m in MODES]
        yield f"{c.model} {c.test}, share of the read bandwidth (goal {100 * STREAM_GOAL:.0f}%): {', '.join(said)}."


def print_all(cells, reps, fast, slow):
    print("\n".join(speed_lines(cells, reps)))
    if any(c.by_mode(fast, slow) for c in cells):
        print("\nDecode against memory (clean samples; `share` of the mean of the two readings)\n")
        print("\n".join(stream_lines(cells, fast, slow)))
    print()
    print("\n".join(summary_lines(cells, reps, fast, slow)), flush=True)
