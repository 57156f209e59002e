#!/usr/bin/env python3
"""The rules by which bench/ judges samples, and how it calls the engines. usage: test_scripts.py BENCH_FOLDER"""
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv.pop(1))
import engines  # noqa: E402
import ggufile  # noqa: E402
import models  # noqa: E402
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

    def test_a_file_of_another_kind_is_refused(self):
        with tempfile.NamedTemporaryFile() as f:
            f.write(b"ELF?")
            f.flush()
            self.assertRaises(RuntimeError, ggufile.Header, f.name)


if __name__ == "__main__":
    result = unittest.TextTestRunner(verbosity=0).run(unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"]))
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed")
    sys.exit(bad > 0)
