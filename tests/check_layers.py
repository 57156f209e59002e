#!/usr/bin/env python3
"""The rules of the house that a machine can check: who includes whom, headers, lengths.

usage: check_layers.py [ROOT]

Prints each offence, then `N passed, N failed` over the rules; exit status 1 if any failed.
"""
import collections
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

MAX_LINES = 1000
PUBLIC = "atsinfer.h"

# Room -> what it may include, besides its own files: a room, or one header of it.
ALLOWED = {
    "base": [PUBLIC],
    "text": ["base"],
    "model": ["base"],
    "plan": ["base", "model/graph.h", "model/dtype.h", "model/fold.h"],
    "backend": ["base", "model/graph.h", "model/dtype.h", "model/fold.h"],
    "run": ["base", "text", "model", "plan", "backend/backend.h", PUBLIC],
    "app": ["base", "text", PUBLIC],
}
# Folders of backend/ that do not see each other; backend.c alone names them all.
DEVICES = ["cpu", "vulkan", "sim"]

# -D names and include folders with which every header must compile by itself.
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-DTEST_SOURCE_ROOT=\"\"", "-Iinclude", "-Isrc", "-Itests", "-Wall", "-Wextra",
         "-fsyntax-only", "-x", "c"]

# Kernel headers written once for all instruction sets are cut like headers but are bodies: each kernels_ISA.c includes
# them after its own vector words. Headers of one instruction set need its flags, or its compiler.
BODY = re.compile(r"src/backend/cpu/kernels_body_\w+\.h")
ISA = re.compile(r"src/backend/cpu/kernels_(?:vec|dot|tile)_(avx2|avxvnni|avx512|amx|neon|neon_dot)\.h")
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
ISA_FLAGS = {
    "avx2": ("x86_64", AVX2),
    "avxvnni": ("x86_64", AVX2 + ["-mavxvnni"]),
    "avx512": ("x86_64", AVX2 + ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"]),
    "amx": ("x86_64", ["-mamx-tile", "-mamx-int8", "-mamx-bf16"]),
    "neon": ("aarch64", []),
    "neon_dot": ("aarch64", ["-march=armv8.2-a+dotprod"]),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def room_of(path):
    """('backend', 'cpu') for src/backend/cpu/x.c; the device is '' outside the device folders."""
    parts = path.parts
    device = parts[2] if len(parts) > 3 and parts[1] == "backend" and parts[2] in DEVICES else ""
    return parts[1], device


def resolve(root, path, name):
    """What an include means: a path relative to src/, or PUBLIC."""
    beside = (root / path).parent / name
    if beside.is_file():
        return pathlib.Path(os.path.normpath(beside)).relative_to(root / "src").as_posix()
    return name


def include_offence(root, path, name):
    room, device = room_of(path)
    if room not in ALLOWED:
        return f"{path}: the room {room} is not in the house"
    target = resolve(root, path, name)
    target_room = target.split("/")[0]
    if target != PUBLIC and target_room not in ALLOWED:
        return None  # a generated file or a library's header in quotes
    if target_room == room:
        target_device = target.split("/")[1] if target.count("/") > 1 and room == "backend" else ""
        names_devices = path.as_posix() == "src/backend/backend.c"
        if target_device in DEVICES and target_device != device and not names_devices:
            return f"{path}: includes {target}, the inside of another device"
        return None
    if target in ALLOWED[room] or target_room in ALLOWED[room]:
        return None
    return f"{path}: {room}/ may not include {target}"


def check_includes(root, files):
    for path in files:
        if path.parts[0] != "src":
            continue
        for name in INCLUDE.findall((root / path).read_text()):
            offence = include_offence(root, path, name)
            if offence:
                yield offence


def check_header_form(root, files):
    for path in files:
        if path.suffix != ".h":
            continue
        text = (root / path).read_text()
        if not text.startswith("/*"):
            yield f"{path}: does not start with a comment that says what it is"
        if not re.search(r"^#pragma once$", text, re.M):
            yield f"{path}: no #pragma once"


def has_header(compiler, name):
    return subprocess.run(compiler + ["-E", "-x", "c", "-"], input=f"#include <{name}>", text=True,
                          capture_output=True).returncode == 0


def compiler_for(path):
    """Command that compiles this header; None if it is a body or its processor's compiler is not there."""
    if BODY.fullmatch(path.as_posix()):
        return None
    native = os.environ.get("CC", "gcc").split()
    if path.as_posix().startswith("src/backend/vulkan/") and not has_header(native, "vulkan/vulkan_core.h"):
        return None
    isa = ISA.fullmatch(path.as_posix())
    if not isa:
        return native
    machine, flags = ISA_FLAGS[isa.group(1)]
    if machine == platform.machine():
        return native + flags
    cross = f"{machine}-linux-gnu-gcc"
    return [cross] + flags if shutil.which(cross) else None


def check_headers_alone(root, files):
    headers = [path for path in files if path.suffix == ".h"]
    for path in headers:
        compiler = compiler_for(path)
        if not compiler:
            continue
        done = subprocess.run(compiler + FLAGS + [str(path)], cwd=root, capture_output=True, text=True)
        lines = [line for line in done.stderr.splitlines() if "pragma once" not in line]
        if done.returncode != 0 or any(" warning: " in line for line in lines):
            yield f"{path}: does not compile alone: " + next((line for line in lines if ": " in line), "?")


def check_lengths(root, files):
    for path in files:
        text = (root / path).read_text()
        generated = "generated by" in text[:1000].lower()
        n_lines = text.count("\n")
        if n_lines > MAX_LINES and not generated:
            yield f"{path}: {n_lines} lines, more than {MAX_LINES}"


# "For tests: ..." says it, or "used by tests" of a whole header.
FOR_TESTS = re.compile(r"\b(for|by)[\s*]+tests\b", re.I)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
PROTOTYPE = re.compile(r"^(?!static|typedef)[A-Za-z_][\w *]*?\b(\w+)\([^;{}]*\)[^;{}]*;", re.M)
DEFINITION = re.compile(r"^(?!static)[A-Za-z_][\w *]*?\b(\w+)\([^;{}]*\)\s*\{", re.M)


def check_callers(root, files):
    """What a header of src/ offers and only tests call is for them, and says so; else it goes."""
    texts = {path: (root / path).read_text() for path in files if path.parts[0] == "src"}
    n_used = collections.Counter()
    for path, text in texts.items():
        code = COMMENT.sub("", text)
        n_used.update(re.findall(r"\b[a-z]\w+", code))
        n_used.subtract(PROTOTYPE.findall(code))
        n_used.subtract(DEFINITION.findall(code))
    for path, text in texts.items():
        if path.suffix != ".h" or BODY.fullmatch(path.as_posix()) or FOR_TESTS.search(COMMENT.match(text)[0]):
            continue
        comment = line = ""  # the last one that stands above code; the line that is begun
        for part in re.split(r"(/\*.*?\*/)", text, flags=re.S):
            names = PROTOTYPE.findall(part)
            if part.startswith("/*"):
                comment = comment if line.strip() else part
                continue
            line = part.rsplit("\n", 1)[-1]
            if not FOR_TESTS.search(comment):
                yield from (f"{path}: nobody in src/ calls {name}, and it is not for tests" for name in names
                            if n_used[name] <= 0)


RULES = [
    ("rooms include only what they may", check_includes),
    ("headers say what they are and are included once", check_header_form),
    ("headers compile alone", check_headers_alone),
    (f"no file is over {MAX_LINES} lines", check_lengths),
    ("what only tests call says so", check_callers),
]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    files = sorted(path.relative_to(root) for folder in ("include", "src", "tests", "examples", "bench")
                   for pattern in ("*.c", "*.h") for path in (root / folder).rglob(pattern))
    n_failed = 0
    for name, rule in RULES:
        offences = list(rule(root, files))
        n_failed += bool(offences)
        print(f"[{'FAILED' if offences else '  OK  '}] {name}")
        for offence in offences:
            print(f"         {offence}")
    print(f"{len(RULES) - n_failed} passed, {n_failed} failed")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
