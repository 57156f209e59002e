#!/usr/bin/env python3
"""Prefill and decode of one model with a part of the GPU memory that it wants: ours, and llama.cpp with as many layers as
fit the same. Called by gpu.sh; rows go to bench/results/gpu.csv (samples.py)."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import engines
import machine
import models
import plans
import recipes
import samples

SHARES = (0.25, 0.5, 0.75, 1.0)
SPARE = 64  # tokens of context beside the tests'
LARGE_FIRST, ROOM = ("dense8b", "dense1b"), 1 << 30  # of caches, work memory, other programs
SAMPLE_S = 60  # one that takes longer says enough: it is left out


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--device", default="vulkan0")
    a.add_argument("--model", default="", help="a GGUF file (default: the largest of dense8b and dense1b that fits, in Q4_0)")
    a.add_argument("--folder", type=pathlib.Path, default=recipes.default_dir() / "models", help="where that is made, or found")
    a.add_argument("--peer", default="", help="the folder of the peer's llama-bench, built for Vulkan")
    a.add_argument("--tests", default="", help="default: pp512,tg64")
    a.add_argument("--software", action="store_true", help="a small model and short tests")
    samples.add_arguments(a, "gpu.csv", 2)
    a.set_defaults(limit=SAMPLE_S)
    o = a.parse_args()
    o.tests = [engines.parse_test(t) for t in (o.tests or ("pp32,tg8" if o.software else "pp512,tg64")).split(",")]
    o.no_wait = o.no_wait or o.software
    samples.set_up(o)
    return o


def free_memory(o):
    """Bytes of the device now, by `doctor`."""
    run = subprocess.run([o.ours, "doctor", "--json"], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"doctor: {run.stderr.strip()[-300:]}")
    device = next((d for d in json.loads(run.stdout)["devices"] if d["name"] == o.device), None)
    if not device or not device["usable"]:
        raise RuntimeError(f"{o.device} is no usable device")
    return device["free_bytes"]


def choose_model(gpu_bytes, host_bytes, disk_bytes):
    """The largest made one that the device holds whole, the host twice (its file in the cache, its weights repacked) and
    the disk once; the smallest if none is."""
    for name in LARGE_FIRST:
        size = models.data_bytes(name, models.Q4_0)
        if size + ROOM <= gpu_bytes and 2 * size + ROOM <= host_bytes and size + ROOM <= disk_bytes:
            return name
    return LARGE_FIRST[-1]


def model_file(o):
    if o.model:
        return pathlib.Path(o.model).resolve()
    o.folder.mkdir(parents=True, exist_ok=True)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    name = "small" if o.software else choose_model(free_memory(o), pages, shutil.disk_usage(o.folder).free)
    out = o.folder.resolve() / f"{name}-Q4_0.gguf"
    if not out.exists():
        print(f"making {out}", file=sys.stderr, flush=True)
        part = out.with_name(out.name + ".part")
        models.make(None, name, part, models.Q4_0)
        part.rename(out)
    return out


def memory_wanted(o, path, context):
    """Bytes of the GPU's memory with everything on it."""
    run = subprocess.run([o.ours, "plan", "-m", path, "--device", f"cpu,{o.device}", "-ngl", "all", "-c", str(context),
                          "--json", "--quiet"], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"the model does not fit: {run.stderr.strip()[-300:]}")
    return next(d["own_bytes"] for d in json.loads(run.stdout)["devices"] if d["name"] == o.device)


def peer_program(o):
    """Its llama-bench, or None."""
    places = [pathlib.Path(o.peer) / "llama-bench"] if o.peer else [recipes.default_dir() / "build/llama-vulkan/bin/llama-bench"]
    found = next((p for p in places if p.exists()), None if o.peer else shutil.which("llama-bench"))
    if o.peer and not found:
        raise RuntimeError(f"there is no llama-bench in {o.peer}")
    if not found:
        print("llama.cpp's llama-bench is not here (--peer FOLDER): it is left out", file=sys.stderr)
    return found


def ways_of(o, path, test, wanted, model, peer):
    """{share: [ours, the peer's]}."""
    threads = len(os.sched_getaffinity(0))
    out = {}
    for share in SHARES:
        mib = -(-int(share * wanted) // 2**20)
        e = engines.open_ours(o.ours, ["--quiet", "--device", f"cpu,{o.device}", "--vram", str(mib)], "", "")
        out[share] = [way(f"ours {share:g}", share, e.command(path, threads, [test]), e, test)]
        if peer:
            n = max(n for n in range(model.n_layers + 2) if model.share_of(model.as_ngl(n)) <= share + 1e-9)
            e = engines.Engine("llama.cpp", [peer], "bench")
            out[share].append(way(f"llama.cpp {share:g}", share, [*e.command(path, threads, [test]), "-ngl", str(n)], e, test))
    return out


def way(name, share, command, engine, test):
    return samples.Way(name, share, command, lambda out: engine.read(out, "", [test])[0][test])


def print_table(o, path, wanted, books, has_peer):
    names = [str(t) for t in o.tests]
    print(f"\n{path.name}, tok/s; all of it wants {wanted / 2**20:.0f} MiB of {o.device} (medians; ~: fewer than {o.reps} "
          "clean samples)\n")
    peer = [c for n in names for c in (f"llama.cpp {n}", "ratio")] if has_peer else []
    print("| GPU memory | " + " | ".join([f"ours {n}" for n in names] + peer) + " |\n" + "|---" * (1 + len(names) + len(peer)) + "|")
    for share in SHARES:
        cells = [samples.figure(books[t], f"ours {share:g}", o.reps) for t in o.tests]
        for t in o.tests if has_peer else []:
            ours, theirs = (books[t].median(f"{e} {share:g}", o.reps) for e in ("ours", "llama.cpp"))
            cells += [samples.figure(books[t], f"llama.cpp {share:g}", o.reps), f"{ours / theirs:.2f}x" if ours and theirs else "-"]
        print(f"| {100 * share:.0f}%, {share * wanted / 2**20:.0f} MiB | " + " | ".join(cells) + " |")


def main():
    o = arguments()
    os.environ.setdefault("GGML_VK_VISIBLE_DEVICES", o.device.removeprefix("vulkan"))
    host, end = machine.describe(), samples.deadline(o.minutes)
    print(f"{host['cpu']}, {host['cpus']} CPUs, {o.device}, {machine.git_version()}, {time.strftime('%Y-%m-%d %H:%M')}")
    path, peer = model_file(o), peer_program(o)
    context = max(t.depth + t.n for t in o.tests) + SPARE
    wanted = memory_wanted(o, path, context)
    model = plans.open_model(o.ours, path, o.device, context)
    books = {}
    for i, test in enumerate(o.tests):
        books[test] = samples.Book(o.csv, o.device, path.name, str(test), o.resume)
        ways = [w for share in ways_of(o, path, test, wanted, model, peer).values() for w in share]
        now = time.monotonic()
        samples.take(books[test], ways, o.reps, o.tries, o.limit, now + (end - now) / (len(o.tests) - i))
    if not any(book.taken for book in books.values()):
        raise RuntimeError("nothing could be measured")
    print_table(o, path, wanted, books, bool(peer))


if __name__ == "__main__":
    try:
        main()
    except (OSError, RuntimeError, ValueError, KeyError, StopIteration) as e:
        sys.exit(f"budgets: {e!r}" if isinstance(e, (KeyError, StopIteration)) else f"budgets: {e}")
