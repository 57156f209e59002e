"""Recipes that fetch and build the peer engines from their PyPI source packages. Used by `peers` and `load`.

Needs python3 with venv, a C++ compiler, cmake and ninja. Layout below the peers' directory: dl/ src/ build/ models/ logs/.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

TOOLS = ["llama-bench", "llama-completion", "llama-perplexity", "llama-quantize"]
# name: (PyPI package, its unpacked folder, the engine's source below it, build folder, cmake options, programs)
RECIPES = {
    "llama.cpp": ("llama-cpp-python==0.3.36", "llama_cpp_python-0.3.36", "vendor/llama.cpp", "llama-native",
                  ["-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"], TOOLS),
    "ik_llama.cpp": ("ik-llama-cpp-python==0.1.5", "ik_llama_cpp_python-0.1.5", "vendor/ik_llama.cpp", "ik-native",
                     ["-DLLAMA_BUILD_TESTS=OFF", "-DGGML_IQK_FA_ALL_QUANTS=OFF"], ["llama-bench", "llama-cli"]),
}
# That package leaves out the cmake script that writes common/build-info.cpp from its template.
IK_BUILD_INFO = """set(BUILD_NUMBER 0)
set(BUILD_COMMIT "sdist")
set(BUILD_COMPILER "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
set(BUILD_TARGET "unknown")
configure_file(${CMAKE_CURRENT_LIST_DIR}/../build-info.cpp.in ${CMAKE_CURRENT_LIST_DIR}/../build-info.cpp)
"""


def default_dir():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "atsinfer" / "peers"


def _do(command, log):
    with open(log, "w", encoding="utf-8") as f:
        if subprocess.run(command, stdout=f, stderr=subprocess.STDOUT).returncode:
            sys.exit(f"failed: {' '.join(map(str, command))}\nsee {log}")


def _fetch(root, package, folder, logs):
    source = root / "src" / folder
    if source.is_dir():
        return source
    print(f"fetching {package}", file=sys.stderr)
    venv = root / "venv"
    if not (venv / "bin/pip").exists():
        _do([sys.executable, "-m", "venv", venv], logs / "venv.log")
    name = package.split("=")[0]
    _do([venv / "bin/pip", "download", "--no-deps", "--no-binary", name, "-d", root / "dl", package], logs / f"{name}.log")
    part = root / "src" / (folder + ".part")
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(root / "dl" / f"{folder}.tar.gz") as t:
        t.extractall(part)
    (part / folder).rename(source)
    return source


def build(name, root, jobs):
    """Return the folder of the peer's programs, building them if they are not there."""
    package, folder, below, out, options, programs = RECIPES[name]
    logs, build_dir = root / "logs", root / "build" / out
    if all((build_dir / "bin" / p).exists() for p in programs):
        return build_dir / "bin"
    for d in ("dl", "src", "build", "models", "logs"):
        (root / d).mkdir(parents=True, exist_ok=True)
    source = _fetch(root, package, folder, logs) / below
    if name == "ik_llama.cpp":
        gen = source / "common/cmake/build-info-gen-cpp.cmake"
        if not gen.exists():
            gen.parent.mkdir(parents=True, exist_ok=True)
            gen.write_text(IK_BUILD_INFO)
    print(f"building {name} with {jobs} jobs (minutes)", file=sys.stderr)
    launch = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    _do(["cmake", "-S", source, "-B", build_dir, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
         *options, *launch], logs / f"cfg-{out}.log")
    _do(["nice", "-n", "19", "ninja", f"-j{jobs}", "-C", build_dir, *programs], logs / f"build-{out}.log")
    return build_dir / "bin"


def requantise(bin_dir, root, model, kind):
    """Return a copy of the model in another type, made with the peer's llama-quantize; it says something of speed only."""
    models = root / "models"
    models.mkdir(parents=True, exist_ok=True)
    plain = models / f"{model.stem}-F16.gguf"
    out = plain if kind == "F16" else models / f"{model.stem}-{kind}.gguf"
    for path, source, to in ((plain, model, "F16"), (out, plain, kind)):
        if not path.exists():
            part = path.with_suffix(".part")
            _do([bin_dir / "llama-quantize", "--allow-requantize", source, part, to], root / "logs" / f"quantize-{path.stem}.log")
            part.rename(path)
    return out
