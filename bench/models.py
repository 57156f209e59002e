#!/usr/bin/env python3
"""Makes the large models of the benchmark: random weights in real shapes, with the vocabulary of another file.

  bench/models.py DONOR.gguf dense1b OUT.gguf [F16|Q8_0|Q4_0|MXFP4]
  bench/models.py - dense1b OUT.gguf Q4_0           with a vocabulary of made-up words: no other file is needed

dense1b   llama, the shape of Llama-3.2-1B (width 2048, 16 layers, 32 heads and 8 of keys, feed-forward 8192), output
          tied to the embedding: 1.07 billion parameters with SmolLM2's vocabulary
dense8b   the same of Llama-3.1-8B (4096, 32 layers, heads of 128, 14336); small: 512 wide, 4 layers, to try things
qwen35    the shape of Qwen3.5-0.8B (width 1024, 24 layers, 18 of them delta nets with 16 heads of 128, 6 with
          gated attention, 8 heads and 2 of keys, 256 wide; feed-forward 3584), output tied: 0.55 billion
delta     qwen35 without attention: whatever the depth, a token of decode takes the same time
gptoss1b  gpt-oss in small (width 1024, 10 layers, 32 heads and 4 of keys, windows of 128 in every other layer, YaRN, sinks,
          32 experts of 1024, 4 in use), always as such files are: experts in MXFP4, the rest in Q8_0: 1.15 billion
moe1b     qwen3moe (width 1024, 12 layers, 16 heads and 4 of keys, 128 wide, 64 experts of 512, 8 in use): 1.37 billion

They say something of speed only. Matrices are F16 or of the type that is asked for, norms and routers F32; the same bytes
every time. Used by recipes.py and gpu.sh.
"""
import array
import pathlib
import random
import statistics
import struct
import sys

import ggufile

F32, F16, Q4_0, Q8_0, MXFP4 = 0, 1, 2, 8, 39
TYPES = {"F16": F16, "Q4_0": Q4_0, "Q8_0": Q8_0, "MXFP4": MXFP4}
FILE_TYPES = {F16: 1, Q4_0: 2, Q8_0: 7, MXFP4: 38}
ALIGN, SIGMA, CHUNK = 32, 0.02, 1 << 24
U32, I32, FLOAT, ARRAY = 4, 5, 6, 9
MADE_UP = 32768  # words of a vocabulary of our own
# Bytes of a block of 32, and what stands before its random quants: a scale that gives them SIGMA (as half, or power of 2).
BLOCK = 32
BLOCKS = {Q4_0: (18, struct.pack("<e", SIGMA / 4.61)), Q8_0: (34, struct.pack("<e", SIGMA / 73.9)), MXFP4: (17, bytes([120]))}


def dense1b(vocab):
    return dense(vocab, 2048, 16, 32, 8, 64, 8192)


def dense8b(vocab):
    return dense(vocab, 4096, 32, 32, 8, 128, 14336)


def small(vocab):
    return dense(vocab, 512, 4, 8, 4, 64, 1536)


def dense(vocab, width, layers, heads, kv_heads, head, ffn):
    """Return (metadata, [(name, dims, type)])."""
    meta = {"block_count": layers, "context_length": 16384, "embedding_length": width, "feed_forward_length": ffn,
            "attention.head_count": heads, "attention.head_count_kv": kv_heads,
            "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500000.0, "rope.dimension_count": head,
            "vocab_size": vocab}
    tensors = [("token_embd", (width, vocab), F16), ("output_norm", (width,), F32)]
    for i in range(layers):
        tensors += [(f"blk.{i}.{name}", dims, kind) for name, dims, kind in (
            ("attn_norm", (width,), F32), ("ffn_norm", (width,), F32), ("attn_q", (width, heads * head), F16),
            ("attn_k", (width, kv_heads * head), F16), ("attn_v", (width, kv_heads * head), F16),
            ("attn_output", (heads * head, width), F16), ("ffn_gate", (width, ffn), F16),
            ("ffn_up", (width, ffn), F16), ("ffn_down", (ffn, width), F16))]
    return "llama", meta, tensors


def moe1b(vocab):
    width, layers, heads, kv_heads, head, experts, used, ffn = 1024, 12, 16, 4, 128, 64, 8, 512
    meta = {"block_count": layers, "context_length": 16384, "embedding_length": width, "feed_forward_length": 4 * ffn,
            "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head,
            "attention.value_length": head, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1000000.0,
            "expert_count": experts, "expert_used_count": used, "expert_feed_forward_length": ffn,
            "vocab_size": vocab}
    tensors = [("token_embd", (width, vocab), F16), ("output", (width, vocab), F16), ("output_norm", (width,), F32)]
    for i in range(layers):
        tensors += [(f"blk.{i}.{name}", dims, kind) for name, dims, kind in (
            ("attn_norm", (width,), F32), ("ffn_norm", (width,), F32), ("attn_q_norm", (head,), F32),
            ("attn_k_norm", (head,), F32), ("attn_q", (width, heads * head), F16),
            ("attn_k", (width, kv_heads * head), F16), ("attn_v", (width, kv_heads * head), F16),
            ("attn_output", (heads * head, width), F16), ("ffn_gate_inp", (width, experts), F32),
            ("ffn_gate_exps", (width, ffn, experts), F16), ("ffn_up_exps", (width, ffn, experts), F16),
            ("ffn_down_exps", (ffn, width, experts), F16))]
    return "qwen3moe", meta, tensors


def qwen35(vocab, every=4):
    width, layers, heads, kv_heads, head, ffn = 1024, 24, 8, 2, 256, 3584
    state, groups, inner, taps = 128, 16, 2048, 4
    meta = {"block_count": layers, "context_length": 16384, "embedding_length": width, "feed_forward_length": ffn,
            "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head,
            "attention.value_length": head, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000000.0,
            "rope.dimension_count": head // 4, "rope.dimension_sections": [11, 11, 10, 0], "vocab_size": vocab,
            "ssm.conv_kernel": taps, "ssm.state_size": state, "ssm.group_count": groups,
            "ssm.time_step_rank": inner // state, "ssm.inner_size": inner, "full_attention_interval": every}
    tensors = [("token_embd", (width, vocab), F16), ("output_norm", (width,), F32)]
    for i in range(layers):
        mixer = [("attn_q_norm", (head,), F32), ("attn_k_norm", (head,), F32),
                 ("attn_q", (width, 2 * heads * head), F16), ("attn_k", (width, kv_heads * head), F16),
                 ("attn_v", (width, kv_heads * head), F16), ("attn_output", (heads * head, width), F16)]
        if (i + 1) % every:
            mixer = [("attn_qkv", (width, 2 * groups * state + inner), F16), ("attn_gate", (width, inner), F16),
                     ("ssm_conv1d", (taps, 2 * groups * state + inner), F32), ("ssm_norm", (state,), F32),
                     ("ssm_alpha", (width, inner // state), F16), ("ssm_beta", (width, inner // state), F16),
                     ("ssm_a", (inner // state,), F32), ("ssm_dt", (inner // state,), F32),
                     ("ssm_out", (inner, width), F16)]
        tensors += [(f"blk.{i}.{name}", dims, kind) for name, dims, kind in (
            ("attn_norm", (width,), F32), ("post_attention_norm", (width,), F32), *mixer,
            ("ffn_gate", (width, ffn), F16), ("ffn_up", (width, ffn), F16), ("ffn_down", (ffn, width), F16))]
    return "qwen35", meta, tensors


def delta(vocab):
    return qwen35(vocab, every=1000)


def gptoss1b(vocab):
    width, layers, heads, kv_heads, head, experts, used, ffn, window = 1024, 10, 32, 4, 64, 32, 4, 1024, 128
    meta = {"block_count": layers, "context_length": 16384, "embedding_length": width, "feed_forward_length": ffn,
            "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head,
            "attention.value_length": head, "attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window": window,
            "rope.freq_base": 150000.0, "rope.dimension_count": head, "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 4096, "expert_count": experts,
            "expert_used_count": used, "expert_feed_forward_length": ffn, "vocab_size": vocab}
    tensors = [("token_embd", (width, vocab), Q8_0), ("output", (width, vocab), Q8_0), ("output_norm", (width,), F32)]
    for i in range(layers):
        tensors += [(f"blk.{i}.{name}", dims, kind) for name, dims, kind in (
            ("attn_norm", (width,), F32), ("post_attention_norm", (width,), F32), ("attn_sinks", (heads,), F32),
            *(pair for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads))
              for pair in ((f"attn_{name}", (width, rows * head), Q8_0), (f"attn_{name}_bias", (rows * head,), F32))),
            ("attn_output", (heads * head, width), Q8_0), ("attn_output_bias", (width,), F32),
            ("ffn_gate_inp", (width, experts), F32), ("ffn_gate_inp_bias", (experts,), F32),
            *(pair for name, cols, rows in (("gate", width, ffn), ("up", width, ffn), ("down", ffn, width))
              for pair in ((f"ffn_{name}_exps", (cols, rows, experts), MXFP4),
                           (f"ffn_{name}_exps_bias", (rows, experts), F32))))]
    return "gpt-oss", meta, tensors


SHAPES = {"dense1b": dense1b, "dense8b": dense8b, "small": small, "moe1b": moe1b, "qwen35": qwen35, "delta": delta, "gptoss1b": gptoss1b}
OWN_TYPE = {"gptoss1b": "MXFP4"}  # made in it at once
SUFFIX = {"ssm_a": "", "ssm_dt": ".bias"}  # else .weight, or .bias in place of _bias


def string(text):
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def encoded(v):
    if isinstance(v, str):
        return struct.pack("<I", ggufile.STRING) + string(v)
    if isinstance(v, float):
        return struct.pack("<If", FLOAT, v)
    if isinstance(v, list):
        return struct.pack(f"<IIQ{len(v)}i", ARRAY, I32, len(v), *v)
    return struct.pack("<II", U32, v)


def count(dims):
    n = 1
    for d in dims:
        n *= d
    return n


def strings(values):
    return struct.pack("<IIQ", ARRAY, ggufile.STRING, len(values)) + b"".join(string(v) for v in values)


def made_up_vocabulary():
    """A byte-level vocabulary: the 256 bytes, one merge, and words that no text has."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelt = {b: chr(b) for b in shown}
    spelt.update((b, chr(256 + i)) for i, b in enumerate(b for b in range(256) if b not in spelt))
    tokens = ["<|end|>", *spelt.values(), spelt[32] + "t"]
    tokens += [f"word{i}" for i in range(MADE_UP - len(tokens))]
    kinds = [3] + [1] * (MADE_UP - 1)  # control, normal
    return {"tokenizer.ggml.model": encoded("gpt2"), "tokenizer.ggml.pre": encoded("gpt-2"),
            "tokenizer.ggml.tokens": strings(tokens), "tokenizer.ggml.token_type": encoded(kinds),
            "tokenizer.ggml.merges": strings([spelt[32] + " t"]), "tokenizer.ggml.bos_token_id": encoded(0),
            "tokenizer.ggml.eos_token_id": encoded(0)}


def full_name(name):
    last = name.split(".")[-1]
    return name[:-5] + ".bias" if last.endswith("_bias") else name + SUFFIX.get(last, ".weight")


def n_bytes(dims, kind):
    n = count(dims)
    return n // BLOCK * BLOCKS[kind][0] if kind in BLOCKS else n * (2 if kind == F16 else 4)


def data_bytes(shape, kind):
    """Of all tensors of a model whose matrices are of a type, with a vocabulary of our own."""
    return sum(n_bytes(dims, kind if t == F16 and dims[0] % BLOCK == 0 else t) for _, dims, t in SHAPES[shape](MADE_UP)[2])


def write_blocks(f, n, kind, rng):
    size, scale = BLOCKS[kind]
    for at in range(0, n, CHUNK):
        blocks = min(CHUNK, n - at) // BLOCK
        out = bytearray(rng.randbytes(blocks * size))
        for i, byte in enumerate(scale):
            out[i::size] = bytes([byte]) * blocks
        f.write(out)


def half_table():
    """Upper byte of the F16 at each 256th of a normal distribution: a random byte becomes sign, exponent and two bits."""
    normal = statistics.NormalDist(0, SIGMA)
    return bytes(struct.pack("<e", normal.inv_cdf((i + 0.5) / 256))[1] for i in range(256))


def write_data(f, name, dims, kind, rng, table):
    n = count(dims)
    if kind in BLOCKS:
        write_blocks(f, n, kind, rng)
    elif kind == F16:
        for at in range(0, n, CHUNK):
            part = min(CHUNK, n - at)
            out = bytearray(2 * part)
            out[0::2] = rng.randbytes(part)
            out[1::2] = rng.randbytes(part).translate(table)
            f.write(out)
    else:
        fixed = -0.5 if name.endswith("ssm_a") else 1.0 if "norm" in name else None
        values = array.array("f", [fixed] * n if fixed else (rng.gauss(0, SIGMA) for _ in range(n)))
        if sys.byteorder == "big":
            values.byteswap()
        f.write(values.tobytes())
    f.write(bytes(-f.tell() % ALIGN))


def make(donor, shape, out, kind=F16):
    """Write the model `shape`, its F16 matrices as `kind`, with the vocabulary of the file `donor`; None: a made-up one."""
    if donor:
        tokens = ggufile.Header(donor)
        vocab, words = tokens.meta["tokenizer.ggml.tokens"], tokens.raw
    else:
        vocab, words = MADE_UP, made_up_vocabulary()
    arch, meta, tensors = SHAPES[shape](vocab)
    tensors = [(name, dims, kind if t == F16 and dims[0] % BLOCK == 0 else t) for name, dims, t in tensors]
    pairs = [(f"{arch}.{k}", encoded(v)) for k, v in meta.items()]
    pairs += [(k, v) for k, v in words.items() if k.startswith("tokenizer.")]
    pairs += [("general.architecture", struct.pack("<I", ggufile.STRING) + string(arch)),
              ("general.name", struct.pack("<I", ggufile.STRING) + string(f"random {shape}")),
              ("general.file_type", struct.pack("<II", U32, FILE_TYPES[TYPES.get(OWN_TYPE.get(shape), kind)]))]
    rng, table = random.Random(shape), half_table()
    with open(out, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)))
        for name, value in pairs:
            f.write(string(name) + value)
        at = 0
        for name, dims, kind in tensors:
            f.write(string(full_name(name)) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, at))
            at += -(-n_bytes(dims, kind) // ALIGN) * ALIGN
        f.write(bytes(-f.tell() % ALIGN))
        for name, dims, kind in tensors:
            write_data(f, name, dims, kind, rng, table)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or sys.argv[2] not in SHAPES or (sys.argv[4:] or ["F16"])[0] not in TYPES:
        sys.exit(__doc__)
    make(None if sys.argv[1] == "-" else pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]),
         TYPES[(sys.argv[4:] or ["F16"])[0]])
