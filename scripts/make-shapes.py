#!/usr/bin/env python3
"""Writes shapes/*.json (src/model/shape.h): models without weights, from their published configurations.

usage: make-shapes.py [FOLDER]

Types: F16; "Q4", which is the mixture that files named Q4_K_M hold (Q4_K, with Q6_K for the head and for ffn_down and
attn_v of every layer in the first and last eighth and of each third one between; attn_v of a 70B Q5_K; a fused
attn_qkv Q5_K); MXFP4 (experts; everything else that is a matrix Q8_0). Norms, biases and routers are F32.
"""
import json
import pathlib
import sys

# The most used share s of a layer's experts receives s^0.55 of the choices: scheduling.md 7.
HIT_EXPONENT = 0.55


class Q4:
    """Type of a matrix by its name and layer; n: layers."""

    def __init__(self, n, v="Q6_K"):
        self.n, self.v = n, v

    def more(self, i):
        eighth = self.n // 8
        return i < eighth or i >= 7 * self.n // 8 or (i - eighth) % 3 == 2

    def of(self, name, layer):
        if name == "output":
            return "Q6_K"
        if name == "attn_qkv":
            return "Q5_K"
        if name == "attn_v" and self.v != "Q6_K":
            return self.v
        if name.startswith(("ffn_down", "attn_v")) and self.more(layer):
            return "Q6_K"
        return "Q4_K"


class F16:
    def of(self, name, layer):
        return "F16"


class MXFP4:
    def of(self, name, layer):
        return "MXFP4" if name.endswith("_exps") else "Q8_0"


def matrix(name, cols, rows, *experts):
    return (name, cols, rows, *experts)


def vector(name, *dims):
    return (name + "!", *dims)


def attention(c, biased=(), gated=False):
    q, kv = c["heads"] * c["head"], c["kv"] * c["head"]
    yield matrix("attn_q", c["embd"], 2 * q if gated else q)
    yield matrix("attn_k", c["embd"], kv)
    yield matrix("attn_v", c["embd"], kv)
    yield matrix("attn_output", q, c["embd"])
    for name in biased:
        yield vector(f"attn_{name}.bias", {"q": q, "k": kv, "v": kv, "output": c["embd"]}[name])


def head_norms(c):
    yield vector("attn_q_norm.weight", c["head"])
    yield vector("attn_k_norm.weight", c["head"])


def gated_ff(c, suffix="", width="ff"):
    yield matrix("ffn_gate" + suffix, c["embd"], c[width])
    yield matrix("ffn_up" + suffix, c["embd"], c[width])
    yield matrix("ffn_down" + suffix, c[width], c["embd"])


def experts(c):
    n, ff, embd = c["experts"], c["expert_ff"], c["embd"]
    yield vector("ffn_gate_inp.weight", embd, n)
    yield matrix("ffn_gate_exps", embd, ff, n)
    yield matrix("ffn_up_exps", embd, ff, n)
    yield matrix("ffn_down_exps", ff, embd, n)


def norms(c, *names):
    for name in names:
        yield vector(name + ".weight", c["embd"])


def delta_net(c, fused):
    keys, values, heads = c["k_heads"] * c["state"], c["v_heads"] * c["state"], c["v_heads"]
    yield matrix("attn_qkv", c["embd"], 2 * keys + values)
    yield matrix("attn_gate", c["embd"], values)
    if fused:
        yield matrix("ssm_ba", c["embd"], 2 * heads)
    else:
        yield matrix("ssm_alpha", c["embd"], heads)
        yield matrix("ssm_beta", c["embd"], heads)
    yield matrix("ssm_out", values, c["embd"])
    yield vector("ssm_conv1d.weight", 4, 2 * keys + values)
    yield vector("ssm_dt.bias", heads)
    yield vector("ssm_a", heads)
    yield vector("ssm_norm.weight", c["state"])


# ---- layers of each architecture: layer -> tensors ----

def glm4(c, i):
    yield from norms(c, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    yield from attention(c, biased="qkv")
    yield matrix("ffn_up", c["embd"], 2 * c["ff"])
    yield matrix("ffn_down", c["ff"], c["embd"])


def llama(c, i):
    yield from norms(c, "attn_norm", "ffn_norm")
    yield from attention(c)
    yield from gated_ff(c)


def qwen3(c, i):
    yield from llama(c, i)
    yield from head_norms(c)


def qwen3moe(c, i):
    yield from norms(c, "attn_norm", "ffn_norm")
    yield from attention(c)
    yield from head_norms(c)
    yield from experts(c)


def gptoss(c, i):
    yield from norms(c, "attn_norm", "post_attention_norm")
    yield from attention(c, biased=("q", "k", "v", "output"))
    yield vector("attn_sinks.weight", c["heads"])
    yield from experts(c)
    yield vector("ffn_gate_inp.bias", c["experts"])
    yield vector("ffn_gate_exps.bias", c["expert_ff"], c["experts"])
    yield vector("ffn_up_exps.bias", c["expert_ff"], c["experts"])
    yield vector("ffn_down_exps.bias", c["embd"], c["experts"])


def hybrid(c, i, fused):
    yield from norms(c, "attn_norm", "post_attention_norm")
    if (i + 1) % 4 == 0:
        yield from attention(c, gated=True)
        yield from head_norms(c)
    else:
        yield from delta_net(c, fused)
    yield from experts(c)
    yield from gated_ff(c, "_shexp", "shared_ff")
    yield vector("ffn_gate_inp_shexp.weight", c["embd"], 1)


def qwen3next(c, i):
    yield from hybrid(c, i, fused=True)


def qwen35moe(c, i):
    yield from hybrid(c, i, fused=False)


# ---- the models ----

MODELS = {
    "glm-z1-9b": dict(
        arch="glm4", name="GLM-Z1-9B-0414", layer=glm4, types=F16(), layers=40, embd=4096, ff=13696, heads=32, kv=2,
        head=128, vocab=151552, ctx=32768, eps=1e-5, rope=10000.0, rot=64),
    "qwen3-14b": dict(
        arch="qwen3", name="Qwen3-14B", layer=qwen3, types=Q4(40), layers=40, embd=5120, ff=17408, heads=40, kv=8,
        head=128, vocab=151936, ctx=40960, eps=1e-6, rope=1000000.0),
    "qwen3-30b-a3b": dict(
        arch="qwen3moe", name="Qwen3-30B-A3B", layer=qwen3moe, types=Q4(48), layers=48, embd=2048, ff=6144, heads=32,
        kv=4, head=128, vocab=151936, ctx=40960, eps=1e-6, rope=1000000.0, experts=128, used=8, expert_ff=768),
    "gpt-oss-20b": dict(
        arch="gpt-oss", name="gpt-oss-20b", layer=gptoss, types=MXFP4(), layers=24, embd=2880, ff=2880, heads=64, kv=8,
        head=64, vocab=201088, ctx=131072, eps=1e-5, rope=150000.0, experts=32, used=4, expert_ff=2880, window=128,
        yarn=(32.0, 4096)),
    "llama-3.1-70b": dict(
        arch="llama", name="Llama-3.1-70B", layer=llama, types=Q4(80, v="Q5_K"), layers=80, embd=8192, ff=28672,
        heads=64, kv=8, head=128, vocab=128256, ctx=131072, eps=1e-5, rope=500000.0, rope_freqs=64),
    "qwen3-next-80b-a3b": dict(
        arch="qwen3next", name="Qwen3-Next-80B-A3B", layer=qwen3next, types=Q4(48), layers=48, embd=2048, ff=5120,
        heads=16, kv=2, head=256, vocab=151936, ctx=262144, eps=1e-6, rope=10000000.0, rot=64, experts=512, used=10,
        expert_ff=512, shared_ff=512, state=128, k_heads=16, v_heads=32),
    "qwen3.5-122b-a10b": dict(
        arch="qwen35moe", name="Qwen3.5-122B-A10B", layer=qwen35moe, types=Q4(48), layers=48, embd=3072, ff=1024,
        heads=32, kv=2, head=256, vocab=248320, ctx=262144, eps=1e-6, rope=10000000.0, rot=64, sections=[11, 11, 10, 0],
        experts=256, used=8, expert_ff=1024, shared_ff=1024, state=128, k_heads=16, v_heads=64),
    "gpt-oss-120b": dict(
        arch="gpt-oss", name="gpt-oss-120b", layer=gptoss, types=MXFP4(), layers=36, embd=2880, ff=2880, heads=64,
        kv=8, head=64, vocab=201088, ctx=131072, eps=1e-5, rope=150000.0, experts=128, used=4, expert_ff=2880,
        window=128, yarn=(32.0, 4096)),
}


def metadata(c):
    arch = c["arch"]
    yield "general.architecture", arch
    yield "general.name", c["name"]
    keys = {"block_count": "layers", "context_length": "ctx", "embedding_length": "embd", "feed_forward_length": "ff",
            "attention.head_count": "heads", "attention.head_count_kv": "kv", "attention.key_length": "head",
            "attention.value_length": "head", "attention.layer_norm_rms_epsilon": "eps", "rope.freq_base": "rope",
            "rope.dimension_count": "rot", "rope.dimension_sections": "sections", "attention.sliding_window": "window",
            "expert_count": "experts", "expert_used_count": "used", "expert_feed_forward_length": "expert_ff",
            "expert_shared_feed_forward_length": "shared_ff", "ssm.state_size": "state", "ssm.group_count": "k_heads",
            "ssm.time_step_rank": "v_heads"}
    for key, field in keys.items():
        if field in c:
            yield f"{arch}.{key}", c[field]
    if "state" in c:
        yield f"{arch}.ssm.conv_kernel", 4
        yield f"{arch}.ssm.inner_size", c["v_heads"] * c["state"]
        yield f"{arch}.full_attention_interval", 4
    if "yarn" in c:
        yield f"{arch}.rope.scaling.type", "yarn"
        yield f"{arch}.rope.scaling.factor", c["yarn"][0]
        yield f"{arch}.rope.scaling.original_context_length", c["yarn"][1]
    if "experts" in c:
        yield "atsinfer.expert_hit_exponent", HIT_EXPONENT


def typed(c, tensor, layer):
    """[name, type, dims] of a matrix or (marked "!") of what stays F32."""
    name, *dims = tensor
    if name.endswith("!"):
        return [name[:-1], "F32", dims]
    return [name + ".weight", c["types"].of(name, layer), dims]


def ranges(numbers):
    """[0, 1, 2, 5] -> [[0, 2], 5]; always a list that holds a list, so that it is read as such."""
    out = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    short = [first if first == last else [first, last] for first, last in out]
    return short if any(isinstance(x, list) for x in short) else [[n, n] for n in numbers]


def groups(c):
    """Tensors that are the same in the same layers stand together."""
    layers_of = {}
    for i in range(c["layers"]):
        for tensor in c["layer"](c, i):
            layers_of.setdefault(json.dumps(typed(c, tensor, i)), []).append(i)
    together = {}
    for tensor, layers in layers_of.items():
        together.setdefault(tuple(layers), []).append(json.loads(tensor))
    return [{"layers": ranges(layers), "tensors": tensors} for layers, tensors in together.items()]


def write(path, c):
    one = [["token_embd.weight", c["types"].of("token_embd", 0), [c["embd"], c["vocab"]]],
           ["output_norm.weight", "F32", [c["embd"]]],
           ["output.weight", c["types"].of("output", 0), [c["embd"], c["vocab"]]]]
    if "rope_freqs" in c:
        one.append(["rope_freqs.weight", "F32", [c["rope_freqs"]]])
    lines = ['{"atsinfer": "shape", "version": 1,',
             ' "comment": "written by scripts/make-shapes.py from the published configuration",', ' "metadata": {']
    lines += [",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in metadata(c)) + "},", ' "tensors": [']
    entries = ["  " + json.dumps(t) for t in one]
    for g in groups(c):
        inner = ",\n".join("    " + json.dumps(t) for t in g["tensors"])
        entries.append(f'  {{"layers": {json.dumps(g["layers"])}, "tensors": [\n{inner}]}}')
    lines.append(",\n".join(entries) + "]}")
    path.write_text("\n".join(lines) + "\n")


def main():
    default = pathlib.Path(__file__).parent.parent / "shapes"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(exist_ok=True)
    for name, c in MODELS.items():
        write(folder / f"{name}.json", c)


if __name__ == "__main__":
    main()
