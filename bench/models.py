#!/usr/bin/env python3
"""Makes the large models of the benchmark: random weights in real shapes, with the vocabulary of another file.

  bench/models.py DONOR.gguf dense1b OUT.gguf

dense1b   llama, the shape of Llama-3.2-1B (width 2048, 16 layers, 32 heads and 8 of keys, feed-forward 8192), output
          tied to the embedding: 1.07 billion parameters with SmolLM2's vocabulary
qwen35    the shape of Qwen3.5-0.8B (width 1024, 24 layers, 18 of them delta nets with 16 heads of 128, 6 with
          gated attention, 8 heads and 2 of keys, 256 wide; feed-forward 3584), output tied: 0.55 billion
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
U32, I32, FLOAT, ARRAY = 4, 5, 6, 9


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


def qwen35(vocab):
    width, layers, heads, kv_heads, head, ffn = 1024, 24, 8, 2, 256, 3584
    state, groups, inner, taps, every = 128, 16, 2048, 4, 4
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


SHAPES = {"dense1b": dense1b, "moe1b": moe1b, "qwen35": qwen35}
SUFFIX = {"ssm_a": "", "ssm_dt": ".bias"}  # else .weight


def string(text):
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def encoded(v):
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
        fixed = -0.5 if name.endswith("ssm_a") else 1.0 if "norm" in name else None
        values = array.array("f", [fixed] * n if fixed else (rng.gauss(0, SIGMA) for _ in range(n)))
        if sys.byteorder == "big":
            values.byteswap()
        f.write(values.tobytes())
    f.write(bytes(-f.tell() % ALIGN))


def make(donor, shape, out):
    """Write the model `shape` with the vocabulary of the file `donor`."""
    tokens = ggufile.Header(donor)
    vocab = tokens.meta["tokenizer.ggml.tokens"]
    arch, meta, tensors = SHAPES[shape](vocab)
    pairs = [(f"{arch}.{k}", encoded(v)) for k, v in meta.items()]
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
            suffix = SUFFIX.get(name.split(".")[-1], ".weight")
            f.write(string(name + suffix) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, at))
            at += -(-count(dims) * (2 if kind == F16 else 4) // ALIGN) * ALIGN
        f.write(bytes(-f.tell() % ALIGN))
        for name, dims, kind in tensors:
            write_data(f, name, dims, kind, rng, table)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[2] not in SHAPES:
        sys.exit(__doc__)
    make(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]))
