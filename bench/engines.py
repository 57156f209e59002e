"""How each engine is called and how its answer is read. One process of an engine times several tests at one depth.

A test is pp512 (a prompt of 512), tg128 (128 tokens generated), or either with @2048: after so many tokens of context.
All draw their tokens from a seeded generator. ours and llama.cpp warm up with the whole test; ik_llama.cpp with one
token only, so its prompt is timed twice and the second counts.
"""
import json
import pathlib
import subprocess
import sys
import typing

import recipes

OURS = "atsinfer"
SWEEP_STEP = 512
PEERS = {  # name: (recipe, flags of llama-bench, flags of llama-sweep-bench)
    "llama.cpp": ("llama.cpp", [], None),
    "ik_llama.cpp": ("ik_llama.cpp", [], []),
    "ik_llama.cpp-rtr": ("ik_llama.cpp", ["-rtr", "1"], ["-rtr"]),
}


class Test(typing.NamedTuple):
    kind: str   # pp or tg
    n: int
    depth: int

    def __str__(self):
        return f"{self.kind}{self.n}" + (f"@{self.depth}" if self.depth else "")


def parse_test(text):
    body, at, depth = text.partition("@")
    if body[:2] not in ("pp", "tg") or not body[2:].isdigit() or (at and not depth.isdigit()):
        raise RuntimeError(f"{text}: a test is like pp512, tg128 or tg64@2048")
    return Test(body[:2], int(body[2:]), int(depth or 0))


class Engine:
    """base: the command without model and test; kind: "bench" (llama-bench's flags) or "ik"."""

    def __init__(self, name, base, kind, version=""):
        self.name, self.base, self.kind, self.version = name, base, kind, version
        self.sweep = None

    def command(self, model, threads, tests):
        depth = tests[0].depth
        shape = [v for kind, flag in (("pp", "-p"), ("tg", "-n"))
                 for v in (flag, ",".join(str(t.n) for t in tests if t.kind == kind) or "0")]
        if self.kind == "ik" and depth:
            return self._sweep_command(model, threads, tests)
        if self.kind == "ik":
            shape[1] = ",".join([shape[1]] * 2)
        return [*self.base, "-m", model, "-t", str(threads), "-r", "1", "-o", "json", *shape,
                *(["-d", str(depth)] if depth else [])]

    def _sweep_command(self, model, threads, tests):
        """Walks the whole context in steps, timing a prompt and a few tokens at each; the last one is our depth."""
        prompts, answers = ({t.n for t in tests if t.kind == k} for k in ("pp", "tg"))
        step, depth = max(prompts, default=SWEEP_STEP), tests[0].depth
        if len(prompts) > 1 or len(answers) > 1 or depth % step:
            raise RuntimeError(f"{self.name}: one length of each kind at a depth, which is a multiple of the prompt's")
        return [*self.sweep, "-m", model, "-t", str(threads), "-tb", str(threads), "-c", str(depth + step), "-b", str(step),
                "-ub", str(step), "-n", str(max(answers, default=16)), "--output-format", "jsonl"]

    def read(self, out, err, tests):
        """From what it wrote: return ({test: tokens a second}, the build that the program names)."""
        if self.kind == "ik" and tests[0].depth:
            rows = [json.loads(line) for line in err.splitlines() if line.startswith('{"n_kv_max"')]
            row = next(r for r in rows if r["n_kv"] == tests[0].depth)
            return {t: row["speed_pp" if t.kind == "pp" else "speed_tg"] for t in tests}, "sdist"
        rows = json.loads(out[out.index("["):])
        found = {(r["n_prompt"], r["n_gen"], r.get("n_depth", 0)): r for r in rows}  # the last of equal ones
        want = {t: (t.n, 0, t.depth) if t.kind == "pp" else (0, t.n, t.depth) for t in tests}
        return {t: found[key]["avg_ts"] for t, key in want.items()}, str(rows[0].get("build_commit", "?"))


def open_peer(name, root, jobs, isa):
    """Build what the peer needs; isa: "" for the processor's best, or "avx2"."""
    recipe, flags, sweep_flags = PEERS[name]
    folder = recipes.build(recipe + (f"-{isa}" if isa else ""), root, jobs)
    e = Engine(name, [folder / "llama-bench", *flags], "ik" if sweep_flags is not None else "bench")
    if sweep_flags is not None:
        e.sweep = [folder / "llama-sweep-bench", *sweep_flags]
    return e


def answer(command):
    """What ours prints with --json."""
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {run.stderr.strip()[-400:]}")
    return json.loads(run.stdout)


def profile(program, path, gpu, threads, force, quick=False):
    """The file of the profile of this machine for the model, measured unless there is one."""
    print(f"  {path.name}: measuring the profile", file=sys.stderr, flush=True)
    got = answer([program, "profile", "-m", path, "--device", f"cpu,{gpu}", "-t", str(threads), "--json", "--quiet",
                  *(["--quick"] if quick else []), *(["--force"] if force else [])])
    if not got["path"]:
        raise RuntimeError("the profile could not be kept: is the cache directory writable?")
    print(f"  {path.name}: a profile of {len(got['profile']['items'])} operators, "
          f"{'measured in' if got['measured'] else 'kept; read in'} {got['seconds']:.0f} s", file=sys.stderr, flush=True)
    return pathlib.Path(got["path"])


def open_ours(program, flags, isa, version):
    return Engine(OURS, [pathlib.Path(program), "bench", *flags, *(["--cpu-isa", isa] if isa else [])], "bench", version)
