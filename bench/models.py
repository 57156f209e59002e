#!/usr/bin/env python3
"""Makes the large models of the benchmark: random weights in real shapes, with the vocabulary of another file.

  bench/models.py DONOR.gguf dense1b OUT.gguf

dense1b   llama, the shape of Llama-3.2-1B (width 2048, 16 layers, 32 heads and 8 of keys, feed-forward 8192), output
          tied to the embedding: 1.07 billion parameters with SmolLM2's vocabulary
moe1b     qwen3moe (width 1024, 12 layers, 16 heads and 4 of keys, 128 wide, 64 experts of 512, 8 in use): 1.37 billion

They say something of speed only. Matrices are F16, norms and routers F32; the same bytes every time. Used by recipes.py.
"""
import array
import pathlib
import random
import statistics
import struct
import sys

import ggufile

F32, F16 = 0, 1
ALIGN, SIGMA, CHUNK = 32, 0.02, 1 << 24
U32, FLOAT = 4, 6


def dense1b(vocab):
    """Return (metadata, [(name, dims, type)])."""
    width, layers, heads, kv_heads, head, ffn = 2048, 16, 32, 8, 64, 8192
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


SHAPES = {"dense1b": dense1b, "moe1b": moe1b}


def string(text):
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def count(dims):
    n = 1
    for d in dims:
        n *= d
    return n


def half_table():
    """Upper byte of the F16 at each 256th of a normal distribution: a random byte becomes sign, exponent and two bits."""
    normal = statistics.NormalDist(0, SIGMA)
    return bytes(struct.pack("<e", normal.inv_cdf((i + 0.5) / 256))[1] for i in range(256))


def write_data(f, name, dims, kind, rng, table):
    n = count(dims)
    if kind == F16:
        for at in range(0, n, CHUNK):
            part = min(CHUNK, n - at)
            out = bytearray(2 * part)
            out[0::2] = rng.randbytes(part)
            out[1::2] = rng.randbytes(part).translate(table)
            f.write(out)
    else:
        values = array.array("f", [1.0] * n if "norm" in name else (rng.gauss(0, SIGMA) for _ in range(n)))
        if sys.byteorder == "big":
            values.byteswap()
        f.write(values.tobytes())
    f.write(bytes(-f.tell() % ALIGN))


def make(donor, shape, out):
    """Write the model `shape` with the vocabulary of the file `donor`."""
    tokens = ggufile.Header(donor)
    vocab = tokens.meta["tokenizer.ggml.tokens"]
    arch, meta, tensors = SHAPES[shape](vocab)
    pairs = [(f"{arch}.{k}", struct.pack("<If", FLOAT, v) if isinstance(v, float) else
              struct.pack("<II", U32, v)) for k, v in meta.items()]
    pairs += [(k, v) for k, v in tokens.raw.items() if k.startswith("tokenizer.")]
    pairs += [("general.architecture", struct.pack("<I", ggufile.STRING) + string(arch)),
              ("general.name", struct.pack("<I", ggufile.STRING) + string(f"random {shape}")),
              ("general.file_type", struct.pack("<II", U32, 1))]
    rng, table = random.Random(shape), half_table()
    with open(out, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)))
        for name, value in pairs:
            f.write(string(name) + value)
        at = 0
        for name, dims, kind in tensors:
            f.write(string(name + ".weight") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, at))
            at += -(-count(dims) * (2 if kind == F16 else 4) // ALIGN) * ALIGN
        f.write(bytes(-f.tell() % ALIGN))
        for name, dims, kind in tensors:
            write_data(f, name, dims, kind, rng, table)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[2] not in SHAPES:
        sys.exit(__doc__)
    make(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]))
