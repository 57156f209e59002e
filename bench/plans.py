"""Plans for `atsinfer --plan`: by layers, every block divided, at random. What may be divided how, and what it weighs, is
what `atsinfer plan --json` tells of a model.

A plan here is {operator: home}, home "cpu", the GPU's name, or a list of parts as src/plan/file.h has them.
"""
import json
import math
import subprocess
import tempfile
import pathlib

ROW_GROUP = 16  # rows that devices keep together
HEAD = -1       # the layer of what comes after the last one
FINE = 32       # units of a block that can take any share: channels, rows, experts; heads of keys are fewer


def open_model(program, path, gpu, context):
    """context: of caches, which count as what their operator weighs."""
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "plan.json"
        run = subprocess.run([program, "plan", "-m", path, "--device", "cpu", "-c", str(context), "--json", "--quiet",
                              "--save-plan", plan], capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"{path}: {run.stderr.strip()[-300:]}")
        return Model(json.loads(run.stdout), json.loads(plan.read_text(encoding="utf-8")), gpu)


class Model:
    """told: the answer of `plan --json`; head: a plan's file, of which the homes are replaced; gpu: its name there."""

    def __init__(self, told, head, gpu):
        self.gpu, self.head = gpu, head
        self.n_layers = told["n_layers"]
        self.tensors = [t for t in told["plan"]["tensors"] if t["op"] != "embed"]
        self.embeddings = [t["name"] for t in told["plan"]["tensors"] if t["op"] == "embed"]
        self.blocks = {}  # number -> tensors; what is in none is by itself
        for i, t in enumerate(self.tensors):
            self.blocks.setdefault(t.get("block", -1 - i), []).append(t)

    def homes(self, of_tensor):
        """The plan that gives each tensor what of_tensor(tensor) says."""
        return {**dict.fromkeys(self.embeddings, "cpu"), **{t["name"]: of_tensor(t) for t in self.tensors}}

    def divided(self, tensor, units):
        """The tensor's home if the GPU has so many of its block's units, the last ones."""
        n, each = tensor["n_units"], tensor["unit_elements"]
        if units in (0, n):
            return self.gpu if units else "cpu"
        parts = (("cpu", 0, (n - units) * each), (self.gpu, (n - units) * each, n * each))
        return [{"device": d, "axis": tensor["unit_axis"], "begin": a, "end": b} for d, a, b in parts]

    def units(self, block, share):
        """The number of units nearest to a share, all of whose borders fall between groups of rows."""
        n = block[0]["n_units"]
        steps = [ROW_GROUP // math.gcd(ROW_GROUP, t["unit_elements"]) for t in block if t["unit_axis"] == "rows"]
        step = math.lcm(1, *steps)
        whole = n // step
        return n if share >= 1 else min(whole, max(0, math.floor(share * whole + 0.5))) * step

    def by_channels(self, share):
        """As by_blocks, but attention, whose heads are few, stays on the CPU."""
        return self.by_blocks(share, FINE)

    def by_blocks(self, share, least_units=1):
        """Every block divided that has so many units: the GPU has the share, in whole ones. What is not divided stays on
        the CPU, but for 1."""
        units = {number: self.units(block, share) if block[0]["n_units"] >= least_units else 0
                 for number, block in self.blocks.items() if "n_units" in block[0]}
        return self.homes(lambda t: self.divided(t, units[t["block"]]) if "n_units" in t
                          else self.gpu if share >= 1 else "cpu")

    def last_layers(self, n):
        """The last n on the GPU; the output counts as one."""
        chosen = [*range(self.n_layers), HEAD][self.n_layers + 1 - n:]
        return self.homes(lambda t: self.gpu if t["layer"] in chosen else "cpu")

    def first_layers(self, n):
        return self.homes(lambda t: self.gpu if 0 <= t["layer"] < n else "cpu")

    def layers_of(self, share):
        """The number of last layers, neither none nor all, whose bytes are nearest to the share."""
        return min(range(1, self.n_layers + 1), key=lambda n: abs(self.share_of(self.last_layers(n)) - share))

    def as_ngl(self, n):
        """What -ngl means, here and in llama.cpp: the last n layers, the output not among them until n is more than all."""
        return self.homes(lambda t: self.gpu if t["layer"] >= self.n_layers - n and t["layer"] >= 0 or n > self.n_layers
                          else "cpu")

    def at_random(self, rng):
        """Each block whole on either side, divided anywhere, or item by item."""
        def block_homes(block):
            kind = rng.randrange(4 if "n_units" in block[0] else 2)
            if kind == 3:
                units = self.units(block, rng.random())
                return {t["name"]: self.divided(t, units) for t in block}
            sides = [rng.choice(["cpu", self.gpu])] * len(block)
            if kind == 2:
                sides = [rng.choice(["cpu", self.gpu]) for _ in block]
            return {t["name"]: side for t, side in zip(block, sides)}
        homes = dict.fromkeys(self.embeddings, "cpu")
        for block in self.blocks.values():
            homes.update(block_homes(block))
        return homes

    def mixed(self, rng, share):
        """As at_random, but most blocks on the CPU: the GPU has about the share."""
        wild = self.at_random(rng)
        keep = {number for number in self.blocks if rng.random() < 2 * share}
        return self.homes(lambda t: wild[t["name"]] if t.get("block") in keep else "cpu")

    def share_of(self, homes):
        """Of the bytes of all weights and caches but the embedding, what the GPU has."""
        total = mine = 0.0
        for t in self.tensors:
            size, home = sum(p["bytes"] for p in t["parts"]), homes[t["name"]]
            total += size
            if isinstance(home, list):
                mine += size * sum(p["end"] - p["begin"] for p in home if p["device"] == self.gpu) / home[-1]["end"]
            elif home == self.gpu:
                mine += size
        return mine / total

    def write(self, homes, path):
        """For `--plan`. A device without work is left out of the file, as the engine would leave it."""
        used = {p["device"] for h in homes.values() if isinstance(h, list) for p in h}
        used |= {h for h in homes.values() if not isinstance(h, list)}
        names = [d for d in ("cpu", self.gpu) if d in used]
        path.write_text(json.dumps({**self.head, "devices": names, "homes": homes}), encoding="utf-8")
        return path
