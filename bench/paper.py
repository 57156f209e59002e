#!/usr/bin/env python3
"""The paper's two platforms, simulated, beside its figures.

usage: bench/paper.py [build/atsinfer]

Calibration, by the column llama.cpp alone: `--granularity layer --transfer none`, decode as simulated, prefill with
every host weight copied before it is used and nothing at once (prefill_serial_tok_s). Free parameters: of each machine
the CPU's rate of reading weights and the usable VRAM, and the GPU's arithmetic for each weight type. Nothing is fitted
to a model. Then, with the machine as it is, ATSInfer by `tensor` and ours by `shard`. Prints tables in Markdown: all of
them beside the paper, and what ours comes to of its bounds: S6, the block reference S6b, S6b with the starts of
operators, and the bound of a prompt, at the paper's chunk and at one that the planner chooses.
"""
import itertools
import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# shape, weight type, prefill@4096 ATSInfer / llama.cpp, decode ATSInfer / llama.cpp: read off the paper's plots.
MACHINES = {
    "laptop-rtx3060-6gb": (512, [
        ("glm-z1-9b", "F16", 690, 370, 3, 3),
        ("qwen3-14b", "Q4_K", 660, 515, 9, 6.7),
        ("qwen3-30b-a3b", "Q4_K", 775, 450, 29, 14),
        ("gpt-oss-20b", "MXFP4", 1090, 580, 24, 20)]),
    "desktop-rtx4090-24gb": (2048, [
        ("llama-3.1-70b", "Q4_K", 1265, 690, 2.3, 2.2),
        ("qwen3-next-80b-a3b", "Q4_K", 1770, 1060, 53, 24.5),
        ("qwen3.5-122b-a10b", "Q4_K", 805, 700, 20, 6),
        ("gpt-oss-120b", "MXFP4", 1610, 1090, 28, 16)])}
# Types of one file whose arithmetic moves together.
FAMILIES = {"F16": ["F16"], "Q4_K": ["Q4_K", "Q5_K", "Q6_K"], "MXFP4": ["MXFP4", "Q8_0"]}


def simulate(program, shape, machine, batch, *flags):
    command = [program, "simulate", str(ROOT / "shapes" / f"{shape}.json"), "--machine", machine, "-b", str(batch),
               "-c", "4352", "--json", *flags]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def beside_copies(m):
    """Of the CPU's rate beside a copy: what the memory has left, as the descriptions say it of the rate they give."""
    link = m["interference"]["copy_speed_cpu"] * m["link"]["up_pinned"]
    return min(1.0, (m["bandwidth"]["dram"] - link) / m["rates"]["cpu"]["bytes"])


def with_parameters(machine, cpu, vram, gpu):
    """The description with the CPU's rate, the usable VRAM, and factors of the GPU's arithmetic by family."""
    m = json.loads(json.dumps(machine))
    m["memory"]["usable_bytes"] = int(vram)
    m["rates"]["cpu"]["bytes"] *= cpu
    m["interference"]["cpu_speed_copying"] = beside_copies(m)
    types = m["rates"]["gpu"].setdefault("types", {})
    for family, factor in gpu.items():
        for name in FAMILIES[family]:
            types[name] = {"flop": m["rates"]["gpu"]["flop"] * factor}
    return m


class Bench:
    def __init__(self, program, folder):
        self.program, self.path, self.cache = program, str(pathlib.Path(folder) / "machine.json"), {}

    def run(self, shape, machine, batch, *flags):
        key = (shape, json.dumps(machine), batch, flags)
        if key not in self.cache:
            pathlib.Path(self.path).write_text(json.dumps(machine))
            self.cache[key] = simulate(self.program, shape, self.path, batch, *flags)
        return self.cache[key]

    def decode(self, shape, machine, batch, *flags):
        return self.run(shape, machine, batch, "-p", "2048", "-d", "2112", *flags)["decode_tok_s"]

    def prefill(self, shape, machine, batch, key, *flags):
        return self.run(shape, machine, batch, "-p", "4096", *flags)[key]


BASE = ("--granularity", "layer", "--transfer", "none")
BASE_PREFILL = (*BASE, "--stream-kv") # the device attends for all layers, as with large batches it must
TENSOR = ("--granularity", "tensor", "--stream-kv")
SHARD = ("--granularity", "shard", "--stream-kv")


def calibrate(bench, machine, batch, models):
    """Least squares of log ratios: rate and VRAM by decode, then each family's arithmetic by prefill."""
    def error(parameters):
        m = with_parameters(machine, parameters[0], parameters[1], {})
        return sum(math.log(bench.decode(s, m, batch, *BASE) / base) ** 2 for s, _, _, _, _, base in models)
    usable, total = machine["memory"]["usable_bytes"], machine["memory"]["gpu_bytes"]
    shares = [0.75, 0.85, 0.92, 1.0]
    cpu, vram = min(itertools.product([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], [min(total, usable * x) for x in shares]),
                    key=error)
    gpu = {}
    for family in dict.fromkeys(t for _, t, *_ in models):
        def misses(factor):
            m = with_parameters(machine, cpu, vram, {family: factor})
            return sum(math.log(bench.prefill(s, m, batch, "prefill_serial_tok_s", *BASE_PREFILL) / base) ** 2
                       for s, t, _, base, _, _ in models if t == family)
        gpu[family] = min([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.6, 2.0], key=misses)
    return cpu, vram, gpu


# Ours should decode at least so many times the paper's ATSInfer.
TIMES = {"glm-z1-9b": 1.0, "llama-3.1-70b": 1.0, "qwen3-14b": 1.2}


def beyond(bench, shape, machine, batch, paper_decode, paper_prefill):
    """A row of what ours comes to: of its bounds, of `tensor` in prompts, of the paper."""
    ours = bench.run(shape, machine, batch, "-p", "2048", "-d", "2112", *SHARD)
    limits = ours["limits"]
    row = [shape, f"{ours['decode_tok_s']:.3g}", f"{ours['decode_tok_s'] / paper_decode:.2f} x",
           f"{TIMES.get(shape, 1.4):.1f} x", *(f"{100 * limits[k]:.0f}%" for k in (
               "decode_of_round", "decode_of_blocks", "decode_of_started"))]
    for chunk in (batch, 0):
        prompt = bench.run(shape, machine, chunk, "-p", "4096", *SHARD)
        whole = bench.run(shape, machine, chunk, "-p", "4096", *TENSOR)
        row += [f"{prompt['prefill_tok_s']:.0f} ({prompt['n_batch']})",
                f"{prompt['prefill_tok_s'] / whole['prefill_tok_s']:.3f} x",
                f"{100 * prompt['limits']['prefill_of_bound']:.0f}%"]
    return row + [f"{paper_prefill}"]


def print_table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def off(value, paper):
    return f"{value:.3g} ({100 * (value / paper - 1):+.0f}%)"


def verdict(bench, models, machine, batch):
    """How many are within 25% in decode, and within 35% in prefill, by tensor."""
    decode = sum(abs(bench.decode(s, machine, batch, *TENSOR) / d - 1) <= 0.25 for s, _, _, _, d, _ in models)
    prefill = sum(abs(bench.prefill(s, machine, batch, "prefill_tok_s", *TENSOR) / p - 1) <= 0.35
                  for s, _, p, _, _, _ in models)
    return decode, prefill


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build" / "atsinfer")
    within = {-1: [0, 0], 0: [0, 0], 1: [0, 0]} # GiB of VRAM more: decode, prefill
    rows, bounds, notes = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(program, folder)
        for name, (batch, models) in MACHINES.items():
            machine = json.loads((ROOT / "machines" / f"{name}.json").read_text())
            cpu, vram, gpu = calibrate(bench, machine, batch, models)
            fitted = with_parameters(machine, cpu, vram, gpu)
            notes.append(f"{name}: CPU reads at {cpu:.2f} of the description, {vram / 2**30:.2f} GiB of VRAM, GPU "
                         "arithmetic " + ", ".join(f"{t} x {f}" for t, f in gpu.items()))
            for more in within:
                vram_then = min(vram + more * 2**30, machine["memory"]["gpu_bytes"])
                counts = verdict(bench, models, with_parameters(machine, cpu, vram_then, gpu), batch)
                within[more] = [a + b for a, b in zip(within[more], counts)]
            for shape, _, prefill, base_prefill, decode, base_decode in models:
                d = bench.decode(shape, fitted, batch, *TENSOR)
                p = bench.prefill(shape, fitted, batch, "prefill_tok_s", *TENSOR)
                shard = bench.run(shape, fitted, batch, "-p", "2048", "-d", "2112", *SHARD)
                rows.append([shape, off(bench.decode(shape, fitted, batch, *BASE), base_decode), f"{base_decode}",
                             off(d, decode), f"{decode}", f"{shard['decode_tok_s']:.3g}",
                             f"{shard['limits']['blocks']['tok_s']:.3g}",
                             off(bench.prefill(shape, fitted, batch, "prefill_serial_tok_s", *BASE_PREFILL),
                                 base_prefill),
                             f"{base_prefill}", off(p, prefill), f"{prefill}",
                             f"{bench.prefill(shape, fitted, batch, 'prefill_tok_s', *SHARD):.0f}"])
                bounds.append(beyond(bench, shape, fitted, batch, decode, prefill))
    print_table(["model", "decode layer", "paper", "tensor", "paper", "shard", "S6b", "prefill layer, serial", "paper",
                 "tensor", "paper", "shard"], rows)
    print_table(["model", "decode", "of the paper's", "wanted", "of S6", "of S6b", "and starts", "prefill (chunk)",
                 "of tensor", "of the bound", "prefill (own chunk)", "of tensor", "of the bound", "paper"], bounds)
    for note in notes:
        print(f"- {note}")
    for more, (decode, prefill) in within.items():
        print(f"- by tensor, VRAM {more:+d} GiB: {decode} of 8 within 25% in decode, {prefill} of 8 within 35% in prefill")


if __name__ == "__main__":
    main()
