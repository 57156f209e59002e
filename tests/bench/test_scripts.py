#!/usr/bin/env python3
"""The rules by which bench/ judges samples, and how it calls the engines. usage: test_scripts.py BENCH_FOLDER"""
import json
import pathlib
import random
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv.pop(1))
import agreement  # noqa: E402
import budgets  # noqa: E402
import engines  # noqa: E402
import ggufile  # noqa: E402
import machine  # noqa: E402
import models  # noqa: E402
import plans  # noqa: E402
import recipes  # noqa: E402
import samples as taken  # noqa: E402
import table  # noqa: E402


def samples(*speeds, bandwidth=None, clean=True):
    return [table.Sample(float(s), clean, 0.0, bandwidth) for s in speeds]


def cell(test="tg128", model="m-Q4_0.gguf", **by_engine):
    c = table.Cell(model, test, token_bytes=1e9)
    c.samples = {e.replace("ours", engines.OURS): s for e, s in by_engine.items()}
    return c


def tiny(vocab):
    """A mixture of experts in miniature, with an output matrix of its own."""
    meta = {"block_count": 1, "embedding_length": 32, "attention.head_count": 2, "attention.head_count_kv": 1,
            "attention.key_length": 16, "expert_count": 8, "expert_used_count": 2, "rope.freq_base": 1e4}
    return "tiny", meta, [("token_embd", (32, vocab), models.F16), ("output", (32, vocab), models.F16),
                          ("output_norm", (32,), models.F32), ("blk.0.ffn_up_exps", (32, 64, 8), models.F16)]


class Rules(unittest.TestCase):
    def test_an_interval_drops_the_ends_of_eight_samples(self):
        self.assertEqual(table.interval([5, 1, 3]), (1, 5))
        self.assertEqual(table.interval([9, 1, 2, 3, 4, 5, 6, 7]), (2, 7))

    def test_the_best_peer_is_the_one_with_the_highest_median(self):
        c = cell(ours=samples(10, 11, 12), a=samples(1, 20, 2), b=samples(9, 10, 11))
        best, ratio, (low, high), clean = c.compare(3)
        self.assertEqual((best, clean), ("b", True))
        self.assertAlmostEqual(ratio, 1.1)
        self.assertAlmostEqual(low, 10 / 11)
        self.assertAlmostEqual(high, 12 / 9)

    def test_nothing_to_compare_gives_nothing(self):
        self.assertIsNone(cell(ours=samples(1)).compare(1))
        self.assertIsNone(cell(a=samples(1), b=samples(1)).compare(1))

    def test_disturbed_samples_count_only_without_enough_clean_ones(self):
        mixed = samples(10, 10) + samples(1, clean=False)
        self.assertEqual([s.ts for s in table.used(mixed, 2)[0]], [10, 10])
        kept, clean = table.used(mixed, 3)
        self.assertEqual((len(kept), clean), (3, False))

    def test_lost_only_when_the_whole_interval_lies_below_one(self):
        self.assertEqual(table.verdict(0.9, 0.99, 1.1), "lost")
        self.assertEqual(table.verdict(0.9, 1.01, 1.1), "below 1.0")
        self.assertEqual(table.verdict(1.05, 1.2, 1.1), "below the goal")
        self.assertEqual(table.verdict(1.1, 1.2, 1.1), "")

    def test_goals_go_by_test_depth_and_type(self):
        self.assertEqual(table.goal("pp512", "dense1b-Q4_K_M.gguf"), 1.3)
        self.assertEqual(table.goal("tg128", "dense1b-Q4_K_M.gguf"), 1.1)
        self.assertEqual(table.goal("pp512@2048", "dense1b-Q4_0.gguf"), 1.1)
        self.assertEqual(table.goal("pp512", "SmolLM2-135M-Instruct.Q4_1-BF16.gguf"), 1.0)
        self.assertEqual(table.kind_of("SmolLM2-135M-Instruct.Q4_1.gguf"), "Q4_1")

    def test_modes_go_by_both_readings(self):
        self.assertEqual([table.mode(b, 70, 56) for b in ((71, 80), (40, 56), (50, 80), (60, 61))],
                         ["fast", "slow", "mixed", "mixed"])

    def test_decode_is_sorted_by_mode_and_counts_its_share(self):
        c = cell(ours=samples(40, bandwidth=(50, 50)) + samples(60, bandwidth=(80, 80)) + samples(9, 9, clean=False))
        found = c.by_mode(70, 56)
        self.assertEqual({m: len(e[engines.OURS]) for m, e in found.items()}, {"slow": 1, "fast": 1})
        self.assertAlmostEqual(c.share(found["slow"][engines.OURS]), 0.8)

    def test_the_summary_names_cells_and_modes(self):
        c = cell(model="dense1b-Q4_0.gguf", ours=samples(*[40] * 5, bandwidth=(50, 50)), a=samples(*[50] * 5))
        text = "\n".join(table.summary_lines([c], 5, 70, 56))
        self.assertIn("Lost (the interval lies below 1.0): dense1b-Q4_0.gguf tg128 0.80 (a).", text)
        self.assertIn("fast never met, slow 80%, mixed never met", text)

    def test_samples_survive_the_csv(self):
        c = cell(ours=samples(40, 41, bandwidth=(50.0, 51.0)) + samples(3, clean=False, bandwidth=(9.0, 9.5)))
        host = dict.fromkeys(("date", "cpu", "cpus", "flags", "ram_gib"), "x")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "new" / "a.csv"
            self.assertEqual(table.load(path, lambda row: True), [])
            table.append(path, [table.row_of(c, engines.OURS, "v1", host, 7, 2, 2)])
            table.append(path, [table.row_of(c, engines.OURS, "v2", host, 7, 2, 2)])
            back = table.load(path, lambda row: row["version"] == "v2")
            self.assertEqual(table.done(path, lambda row: True, "v1"), {(c.model, c.test): "x"})
            self.assertEqual(table.done(path, lambda row: True, "v3"), {})
        self.assertEqual(len(back), 1)
        self.assertEqual([(s.ts, s.clean, s.bandwidth) for s in back[0].samples[engines.OURS]],
                         [(s.ts, s.clean, s.bandwidth) for s in c.samples[engines.OURS]])
        self.assertEqual(back[0].token_bytes, 1e9)


class Engines(unittest.TestCase):
    PROMPT, ANSWER = engines.parse_test("pp512"), engines.parse_test("tg128")

    def test_tests_are_parsed_or_refused(self):
        self.assertEqual(engines.parse_test("tg64@8192"), ("tg", 64, 8192))
        self.assertEqual(str(engines.parse_test("pp512@2048")), "pp512@2048")
        for bad in ("xx5", "pp", "tg5@", "tg5@x", "512"):
            self.assertRaises(RuntimeError, engines.parse_test, bad)

    def test_one_process_times_all_tests_of_a_depth(self):
        e = engines.Engine("llama.cpp", ["bench"], "bench")
        self.assertEqual(e.command("m", 2, [self.PROMPT, self.ANSWER]),
                         ["bench", "-m", "m", "-t", "2", "-r", "1", "-o", "json", "-p", "512", "-n", "128"])
        deep = engines.parse_test("tg64@2048")
        self.assertEqual(e.command("m", 2, [deep])[-6:], ["-p", "0", "-n", "64", "-d", "2048"])

    def test_a_prompt_of_ik_is_timed_twice_and_the_second_counts(self):
        e = engines.Engine("ik", ["bench"], "ik")
        self.assertEqual(e.command("m", 2, [self.PROMPT])[-4:], ["-p", "512,512", "-n", "0"])
        out = 'noise\n[{"n_prompt":512,"n_gen":0,"avg_ts":1.0},{"n_prompt":512,"n_gen":0,"avg_ts":2.0}]'
        self.assertEqual(e.read(out, "", [self.PROMPT])[0], {self.PROMPT: 2.0})

    def test_rows_are_told_apart_by_depth(self):
        e = engines.Engine("llama.cpp", ["bench"], "bench")
        deep = engines.parse_test("tg128@64")
        out = ('[{"build_commit":"b1","n_prompt":0,"n_gen":128,"n_depth":0,"avg_ts":1.0},'
               '{"n_prompt":0,"n_gen":128,"n_depth":64,"avg_ts":2.0}]')
        self.assertEqual(e.read(out, "", [deep]), ({deep: 2.0}, "b1"))
        self.assertRaises(KeyError, e.read, out, "", [self.PROMPT])

    def test_depths_of_ik_come_from_its_sweep(self):
        e = engines.Engine("ik", ["bench"], "ik")
        e.sweep = ["sweep"]
        tests = [engines.parse_test(t) for t in ("pp512@1024", "tg64@1024")]
        command = e.command("m", 2, tests)
        self.assertEqual(command[command.index("-c") + 1], "1536")
        err = '{"n_kv_max": 1, "n_kv": 512, "speed_pp": 1.0, "speed_tg": 2.0 }\n' \
              '{"n_kv_max": 1, "n_kv": 1024, "speed_pp": 3.0, "speed_tg": 4.0 }\n'
        self.assertEqual(e.read("", err, tests)[0], dict(zip(tests, (3.0, 4.0))))
        self.assertRaises(RuntimeError, e.command, "m", 2, [engines.parse_test("pp512@1000")])


class Models(unittest.TestCase):
    def test_a_made_model_is_read_back(self):
        models.SHAPES["tiny"] = tiny
        with tempfile.TemporaryDirectory() as folder:
            donor, out, again = (pathlib.Path(folder) / name for name in ("donor", "out", "again"))
            one = b"".join(len(x).to_bytes(8, "little") + x for x in (b"a", b"bc"))
            donor.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little") +
                              models.string("tokenizer.ggml.tokens") + (9).to_bytes(4, "little") +
                              (8).to_bytes(4, "little") + (2).to_bytes(8, "little") + one)
            models.make(donor, "tiny", out)
            models.make(donor, "tiny", again)
            self.assertEqual(out.read_bytes(), again.read_bytes())
            h = ggufile.Header(out)
        self.assertEqual(h.arch("expert_count"), 8)
        self.assertEqual(h.meta["tokenizer.ggml.tokens"], 2)
        self.assertEqual(h.tensors["blk.0.ffn_up_exps.weight"][0], [32, 64, 8])
        # Two of eight experts, the output matrix and the norm; of the embedding, one row: nothing.
        self.assertEqual(ggufile.decode_bytes(h), 32 * 64 * 2 * 2 + 32 * 2 * 2 + 32 * 4)
        self.assertEqual(ggufile.kv_bytes(h, 10), 2 * 2 * 16 * 10)
        del h.tensors["output.weight"]  # then the embedding is the output matrix, too
        self.assertEqual(ggufile.decode_bytes(h), 32 * 64 * 2 * 2 + 32 * 2 * 2 + 32 * 4)
        self.assertRaises(RuntimeError, h.arch, "context_length")

    def test_blocks_of_quants_are_made_at_once(self):
        models.SHAPES["tiny"] = tiny
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out"
            for kind, size in (("Q8_0", 34), ("Q4_0", 18), ("MXFP4", 17)):
                models.make(None, "tiny", out, models.TYPES[kind])
                h = ggufile.Header(out)
                self.assertEqual(h.meta["tokenizer.ggml.tokens"], models.MADE_UP)
                dims, number, bytes_there = h.tensors["blk.0.ffn_up_exps.weight"]
                self.assertEqual((dims, number, bytes_there), ([32, 64, 8], models.TYPES[kind], 64 * 8 * size))
                self.assertEqual(h.tensors["output_norm.weight"][1], models.F32)
                data = out.read_bytes()[-64 * 8 * size:]  # the last tensor; each block begins with the scale
                scale = models.BLOCKS[models.TYPES[kind]][1]
                self.assertTrue(all(data[at:].startswith(scale) for at in range(0, len(data), size)))
                self.assertGreater(len(set(data)), 200)

    def test_a_model_is_as_large_as_it_says_and_as_what_there_is_holds(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out"
            models.SHAPES["tiny"] = tiny
            models.make(None, "tiny", out, models.Q4_0)
            said = models.data_bytes("tiny", models.Q4_0)
            self.assertEqual(said, sum(b for _, _, b in ggufile.Header(out).tensors.values()))
        large, small = (models.data_bytes(n, models.Q4_0) for n in budgets.LARGE_FIRST)
        self.assertGreater(large, small)
        much, tight = 3 * large + budgets.ROOM, large + budgets.ROOM - 1
        self.assertEqual(budgets.choose_model(much, much, much), "dense8b")
        for there in ((tight, much, much), (much, 2 * large, much), (much, much, tight), (0, 0, 0)):
            self.assertEqual(budgets.choose_model(*there), "dense1b")

    def test_names_end_as_files_have_them(self):
        self.assertEqual([models.full_name(f"blk.1.{n}") for n in ("attn_q", "attn_q_bias", "ssm_a", "ssm_dt")],
                         ["blk.1.attn_q.weight", "blk.1.attn_q.bias", "blk.1.ssm_a", "blk.1.ssm_dt.bias"])

    def test_every_shape_that_is_made_has_whole_blocks(self):
        for name in [n for n in models.SHAPES if n != "tiny"]:
            arch, meta, tensors = models.SHAPES[name](49152)
            self.assertTrue(arch and meta["block_count"] > 0)
            self.assertTrue(all(dims[0] % models.BLOCK == 0 for _, dims, kind in tensors if kind in models.BLOCKS))
            self.assertEqual(len({n for n, _, _ in tensors}), len(tensors))
        names = [n for n, _, _ in models.SHAPES["delta"](49152)[2]]
        self.assertFalse([n for n in names if n.endswith(("attn_k", "attn_q"))])

    def test_a_file_of_another_kind_is_refused(self):
        with tempfile.NamedTemporaryFile() as f:
            f.write(b"ELF?")
            f.flush()
            self.assertRaises(RuntimeError, ggufile.Header, f.name)


def told_model():
    """Two layers of an attention in 3 units and a feed-forward in 8 of 32, an output of 640 rows."""
    def tensor(name, layer, size, block=None, n=0, axis="rows", each=0):
        units = {"block": block, "n_units": n, "unit_axis": axis, "unit_elements": each} if n else {}
        return {"name": name, "op": "embed" if name == "embd" else "matmul", "layer": layer, "parts": [{"bytes": size}], **units}
    tensors = [tensor("embd", -1, 1000)]
    for i in range(2):
        tensors += [tensor(f"{i}.q", i, 20, 2 * i, 3, "rows", 64), tensor(f"{i}.o", i, 20, 2 * i, 3, "cols", 64),
                    tensor(f"{i}.router", i, 10), tensor(f"{i}.up", i, 25, 2 * i + 1, 8, "rows", 32)]
    tensors.append(tensor("head", -1, 50, 4, 640, "rows", 1))
    return plans.Model({"n_layers": 2, "plan": {"tensors": tensors}}, {"version": 1, "homes": {"gone": "cpu"}}, "gpu")


class Plans(unittest.TestCase):
    def setUp(self):
        self.model = told_model()

    def test_every_block_is_divided_in_whole_units_on_borders_of_rows(self):
        homes = self.model.by_blocks(0.5)
        self.assertEqual(homes["0.q"], [{"device": "cpu", "axis": "rows", "begin": 0, "end": 64},
                                        {"device": "gpu", "axis": "rows", "begin": 64, "end": 192}])
        self.assertEqual(homes["0.o"][1], {"device": "gpu", "axis": "cols", "begin": 64, "end": 192})
        self.assertEqual((homes["0.router"], homes["embd"]), ("cpu", "cpu"))
        self.assertEqual(homes["head"][0]["end"], 320)
        self.assertEqual(self.model.by_blocks(0.031)["head"][0]["end"], 640 - 16)
        self.assertAlmostEqual(self.model.share_of(homes), (2 * (40 * 2 / 3 + 12.5) + 25) / 200)

    def test_by_channels_attention_stays_whole(self):
        homes = self.model.by_channels(0.5)
        self.assertEqual([homes[n] for n in ("0.q", "1.o", "0.up", "0.router")], ["cpu"] * 4)  # in 3, 3 and 8 units
        self.assertEqual(homes["head"], self.model.by_blocks(0.5)["head"])

    def test_the_ends_are_one_device(self):
        self.assertEqual(set(self.model.by_blocks(0).values()), {"cpu"})
        self.assertEqual(self.model.share_of(self.model.by_blocks(1)), 1)
        self.assertEqual(self.model.share_of(self.model.last_layers(0)), 0)
        self.assertEqual(self.model.share_of(self.model.last_layers(3)), 1)

    def test_layers_are_counted_from_the_output(self):
        homes = self.model.last_layers(2)
        self.assertEqual([homes[n] for n in ("0.q", "1.q", "1.router", "head", "embd")], ["cpu", "gpu", "gpu", "gpu", "cpu"])
        self.assertEqual([self.model.layers_of(s) for s in (0.01, 0.25, 0.6, 0.99)], [1, 1, 2, 2])

    def test_first_layers_leave_the_output(self):
        homes = self.model.first_layers(1)
        self.assertEqual([homes[n] for n in ("0.q", "0.router", "1.q", "head", "embd")], ["gpu", "gpu", "cpu", "cpu", "cpu"])

    def test_random_plans_cover_everything_and_depend_on_the_seed(self):
        seen = [self.model.at_random(random.Random(s)) for s in range(40)]
        self.assertEqual(seen[3], self.model.at_random(random.Random(3)))
        names = {t["name"] for t in self.model.tensors} | {"embd"}
        self.assertTrue(all(set(h) == names and h["embd"] == "cpu" for h in seen))
        for homes in seen:  # a block is divided as a whole or not at all, its parts meet
            self.assertEqual(isinstance(homes["0.q"], list), isinstance(homes["0.o"], list))
            for h in homes.values():
                self.assertTrue(not isinstance(h, list) or 0 < h[0]["end"] == h[1]["begin"] < h[1]["end"])
        self.assertTrue(any(isinstance(h["0.q"], list) for h in seen))
        self.assertTrue(any(h["0.q"] != h["0.o"] and not isinstance(h["0.q"], list) for h in seen))

    def test_a_file_names_the_devices_that_it_uses(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "p.json"
            for share, devices in ((0, ["cpu"]), (0.5, ["cpu", "gpu"])):
                homes = self.model.by_blocks(share)
                read = json.loads(self.model.write(homes, path).read_text())
                self.assertEqual(read, {"version": 1, "devices": devices, "homes": homes})


class Agreement(unittest.TestCase):
    def test_pairs_that_are_told_apart_have_to_be_in_order(self):
        self.assertEqual(agreement.pairs_in_order([1, 2, 3], [1, 3, 2], 0.0), (2, 3))
        self.assertEqual(agreement.pairs_in_order([1, 2, 3], [1, 3, 2], 0.3), (2, 2))  # 2 and 3 are too near
        self.assertEqual(agreement.pairs_in_order([1, 1], [1, 2], 0.0), (0, 0))

    def test_slower_is_what_no_noise_explains(self):
        self.assertTrue(agreement.is_slower(95, 100, 0.02))
        self.assertFalse(agreement.is_slower(97, 100, 0.02))
        self.assertFalse(agreement.is_slower(101, 100, 0.0))

    def test_ranks_and_their_correlation(self):
        self.assertEqual(agreement.ranks([5, 1, 5, 9]), [2.5, 1, 2.5, 4])
        self.assertAlmostEqual(agreement.spearman([1, 2, 3, 4], [10, 20, 30, 99]), 1)
        self.assertAlmostEqual(agreement.spearman([1, 2, 3], [3, 2, 1]), -1)
        self.assertEqual(agreement.spearman([1, 1], [1, 2]), 0)

    def test_goals_are_met_or_not(self):
        good = "\n".join(agreement.lines([1.0, 2.0, 4.0], [1.1, 2.1, 4.0], 0.02))
        self.assertIn("order: 3 of 3 pairs, 100.0% (goal 95%): met", good)
        self.assertNotIn("NOT", good)
        bad = "\n".join(agreement.lines([1.0, 2.0, 4.0], [3.0, 2.0, 4.0], 0.02))
        self.assertIn("order: 2 of 3 pairs, 66.7% (goal 95%): NOT met", bad)
        self.assertIn("worst error 66.7% (goal 30%): NOT met", bad)


class Samples(unittest.TestCase):
    def way(self, name, text="4"):
        return taken.Way(name, 0.5, [sys.executable, "-c", f"print({text!r})"], float)

    def test_ways_are_run_in_turn_and_gone_on_with(self):
        machine.WAIT_S = 0
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "new" / "s.csv"
            book = taken.Book(path, "here", "m", "tg8", True)
            able = taken.take(book, [self.way("a"), self.way("b"), self.way("bad", "no number")], 2, 2, 60, float("inf"))
            self.assertEqual([w.name for w in able], ["a", "b"])
            order = [line.split(",")[9] for line in path.read_text().splitlines()[1:]]
            self.assertEqual(order, ["a", "b", "b", "a"])
            again = taken.Book(path, "here", "m", "tg8", True)
            self.assertEqual((len(again.taken["a"]), again.median("a", 2)), (2, 4.0))
            taken.take(again, [self.way("a")], 2, 2, 60, float("inf"))
            self.assertEqual(len(again.taken["a"]), 2)
            for other in (("there", "m", "tg8", True), ("here", "n", "tg8", True), ("here", "m", "tg8", False)):
                self.assertEqual(taken.Book(path, *other).taken, {})

    def test_no_time_no_sample(self):
        with tempfile.TemporaryDirectory() as folder:
            book = taken.Book(pathlib.Path(folder) / "s.csv", "here", "m", "tg8", False)
            taken.take(book, [self.way("a")], 2, 2, 60, 0)
            self.assertEqual((book.taken, book.median("a", 2), taken.figure(book, "a", 2)), ({}, None, "-"))

    def test_clean_samples_count_if_there_are_enough(self):
        book = taken.Book(pathlib.Path("/none"), "here", "m", "tg8", False)
        book.taken["a"] = [taken.Taken(4.0, True), taken.Taken(1.0, False), taken.Taken(6.0, True)]
        self.assertEqual((book.median("a", 2), book.median("a", 3)), (5.0, 4.0))
        self.assertEqual(taken.figure(book, "a", 3), "~4.00 (1.00-6.00, n=3)")


class Recipes(unittest.TestCase):
    def test_old_headers_get_a_source_without_layer_settings(self):
        call = "    vk::InstanceCreateInfo info(flags, &app, layers, extensions, &layer_setting_info);\n"
        text = "a\n    VkBool32 enable_best_practice = x;\n    use(x);\n" + call + "b\n"
        mended = recipes.without_layer_settings(text)
        self.assertEqual(mended, "a\n#ifdef VK_EXT_LAYER_SETTINGS_EXTENSION_NAME\n" + text[2:-2] + "#else\n" +
                         call.replace(", &layer_setting_info", "") + "#endif\nb\n")
        self.assertEqual(recipes.without_layer_settings(mended), mended)
        self.assertEqual(recipes.without_layer_settings("nothing of it"), "nothing of it")


if __name__ == "__main__":
    result = unittest.TextTestRunner(verbosity=0).run(unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"]))
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed")
    sys.exit(bad > 0)
