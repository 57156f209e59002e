"""Reads the header of a GGUF file: metadata, tensors, and what of them one generated token reads."""
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class Header:
    """meta: name -> scalar, string or, of an array, its length; raw: name -> the bytes of its type and value;
    tensors: name -> (dims, fastest first; type number; bytes in the file, padding included)."""

    def __init__(self, path):
        self.meta, self.raw, self.tensors = {}, {}, {}
        with open(path, "rb") as f:
            if f.read(4) != b"GGUF":
                raise RuntimeError(f"{path} is no GGUF file")
            _, n_tensors, n_meta = self._take(f, "I"), self._take(f, "Q"), self._take(f, "Q")
            for _ in range(n_meta):
                self._read_pair(f)
            self._read_tensors(f, n_tensors)

    @staticmethod
    def _take(f, code):
        return struct.unpack("<" + code, f.read(struct.calcsize("<" + code)))[0]

    def _value(self, f, kind):
        if kind == STRING:
            return f.read(self._take(f, "Q")).decode("utf-8", "replace")
        if kind == ARRAY:
            inner, n = self._take(f, "I"), self._take(f, "Q")
            if inner in SCALARS:
                f.seek(n * struct.calcsize("<" + SCALARS[inner]), 1)
            else:
                for _ in range(n):
                    self._value(f, inner)
            return n
        return self._take(f, SCALARS[kind])

    def _read_pair(self, f):
        name, start = self._value(f, STRING), f.tell()
        self.meta[name] = self._value(f, self._take(f, "I"))
        end = f.tell()
        f.seek(start)
        self.raw[name] = f.read(end - start)

    def _read_tensors(self, f, n):
        infos = []
        for _ in range(n):
            name = self._value(f, STRING)
            dims = [self._take(f, "Q") for _ in range(self._take(f, "I"))]
            infos.append((name, dims, self._take(f, "I"), self._take(f, "Q")))
        align = self.meta.get("general.alignment", 32)
        data = (f.tell() + align - 1) // align * align
        end = f.seek(0, 2) - data
        starts = sorted(i[3] for i in infos) + [end]
        after = dict(zip(starts, starts[1:]))
        for name, dims, kind, at in infos:
            self.tensors[name] = (dims, kind, after[at] - at)

    def arch(self, key, default=None):
        """A value of the architecture's own, as block_count."""
        value = self.meta.get(f"{self.meta['general.architecture']}.{key}", default)
        if value is None:
            raise RuntimeError(f"the file does not tell {key}")
        return value


def decode_bytes(header):
    """Bytes of weights that one token of decode reads: an embedding of its own table is one row, hence nothing; the
    experts in use, of all."""
    tied = "output.weight" not in header.tensors
    total = 0.0
    for name, (_, _, size) in header.tensors.items():
        if name == "token_embd.weight" and not tied:
            continue
        if "_exps." in name:
            size *= header.arch("expert_used_count") / header.arch("expert_count")
        total += size
    return total


def kv_bytes(header, n_tokens):
    """Bytes of an f16 cache of n_tokens, keys and values."""
    heads, dim = header.arch("attention.head_count"), header.arch("embedding_length")
    head_dim = header.arch("attention.key_length", dim // heads)
    return 2 * 2 * header.arch("block_count") * header.arch("attention.head_count_kv", heads) * head_dim * n_tokens
