"""Recipes that fetch and build the peer engines from their PyPI source packages, and make the models to run them on.

Used by `peers` and `load`. Needs python3 with venv, a C++ compiler, cmake and ninja. Layout below the peers' directory:
dl/ src/ build/ models/ logs/.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import typing

import models


class Recipe(typing.NamedTuple):
    package: str    # on PyPI
    folder: str     # what it unpacks to
    source: str     # the engine below that
    out: str        # build folder
    options: list   # of cmake
    programs: list


TOOLS = ["llama-bench", "llama-completion", "llama-perplexity", "llama-quantize"]
LLAMA = ("llama-cpp-python==0.3.36", "llama_cpp_python-0.3.36", "vendor/llama.cpp")
IK = ("ik-llama-cpp-python==0.1.5", "ik_llama_cpp_python-0.1.5", "vendor/ik_llama.cpp")
LLAMA_OPTIONS = ["-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"]
IK_OPTIONS = ["-DLLAMA_BUILD_TESTS=OFF", "-DGGML_IQK_FA_ALL_QUANTS=OFF"]
IK_TOOLS = ["llama-bench", "llama-sweep-bench"]
NATIVE = ["-DGGML_NATIVE=ON"]
# Both engines read the compiler's own macros besides these options, so -march has to agree with them.
AVX2 = ["-DGGML_NATIVE=OFF", "-DCMAKE_C_FLAGS=-march=x86-64-v3", "-DCMAKE_CXX_FLAGS=-march=x86-64-v3",
        *(f"-DGGML_{x}=ON" for x in ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")),
        *(f"-DGGML_{x}=OFF" for x in ("AVX_VNNI", "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16"))]
RECIPES = {
    "llama.cpp": Recipe(*LLAMA, "llama-native", NATIVE + LLAMA_OPTIONS, TOOLS),
    "ik_llama.cpp": Recipe(*IK, "ik-native", NATIVE + IK_OPTIONS, IK_TOOLS),
    "llama.cpp-avx2": Recipe(*LLAMA, "llama-avx2", AVX2 + LLAMA_OPTIONS, ["llama-bench"]),
    "ik_llama.cpp-avx2": Recipe(*IK, "ik-avx2", AVX2 + IK_OPTIONS, IK_TOOLS),
    "llama.cpp-vulkan": Recipe(*LLAMA, "llama-vulkan", NATIVE + ["-DGGML_VULKAN=ON"] + LLAMA_OPTIONS, ["llama-bench"]),
}
VULKAN_SOURCE = "ggml/src/ggml-vulkan/ggml-vulkan.cpp"
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


def without_layer_settings(text):
    """The Vulkan source for headers older than 1.3.272, as Debian 12's: they lack VK_EXT_layer_settings, which it wants
    for one setting of the validation layer only."""
    first, last = "    VkBool32 enable_best_practice", ", &layer_setting_info);\n"
    at, end = text.find(first), text.find(last) + len(last)
    if at < 0 or end < at or "LAYER_SETTINGS_EXTENSION_NAME" in text:
        return text
    settings = text[at:end]
    plain_call = settings[settings.rindex("\n", 0, -1) + 1:].replace(last, ");\n")
    return (text[:at] + "#ifdef VK_EXT_LAYER_SETTINGS_EXTENSION_NAME\n" + settings + "#else\n" + plain_call + "#endif\n" +
            text[end:])


def _prepare(name, source):
    """Mend what the source package does not have or the system's headers lack."""
    if name.startswith("ik_"):
        gen = source / "common/cmake/build-info-gen-cpp.cmake"
        if not gen.exists():
            gen.parent.mkdir(parents=True, exist_ok=True)
            gen.write_text(IK_BUILD_INFO)
    if name.endswith("-vulkan"):
        path = source / VULKAN_SOURCE
        text = path.read_text(encoding="utf-8")
        mended = without_layer_settings(text)
        if mended != text:
            path.write_text(mended, encoding="utf-8")


def build(name, root, jobs):
    """Return the folder of the peer's programs, building them if they are not there."""
    r = RECIPES[name]
    logs, build_dir = root / "logs", root / "build" / r.out
    if all((build_dir / "bin" / p).exists() for p in r.programs):
        return build_dir / "bin"
    for d in ("dl", "src", "build", "models", "logs"):
        (root / d).mkdir(parents=True, exist_ok=True)
    source = _fetch(root, r.package, r.folder, logs) / r.source
    _prepare(name, source)
    print(f"building {name} with {jobs} jobs (minutes)", file=sys.stderr)
    launch = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    _do(["cmake", "-S", source, "-B", build_dir, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *r.options, *launch],
        logs / f"cfg-{r.out}.log")
    _do(["nice", "-n", "19", "ninja", f"-j{jobs}", "-C", build_dir, *r.programs], logs / f"build-{r.out}.log")
    return build_dir / "bin"


def _made(path, command, log):
    """Run the command, which ends in the file it writes plus `after`, unless that file is there."""
    if path.exists():
        return
    print(f"making {path.name}", file=sys.stderr)
    part = path.with_name(path.name + ".part")
    _do([part if c is path else c for c in command], log)
    part.rename(path)


def model_name(model):
    """What --models calls it: the made ones by name, the others by their file's."""
    return model if model in models.SHAPES else pathlib.Path(model).stem


def plain(bin_dir, root, model, donor):
    """The model in F16, or in a type of its own, made or requantised; `donor` gives made ones their vocabulary."""
    folder, logs = root / "models", root / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    logs.mkdir(parents=True, exist_ok=True)
    out = folder / f"{model_name(model)}-{models.OWN_TYPE.get(model, 'F16')}.gguf"
    if model in models.SHAPES:
        _made(out, [sys.executable, models.__file__, donor, model, out], logs / f"make-{model}.log")
    else:
        _made(out, [bin_dir / "llama-quantize", "--allow-requantize", model, out, "F16"], logs / f"quantize-{out.stem}.log")
    return out


def requantise(bin_dir, root, model, kind, donor):
    """Return the model in another type, made with the peer's llama-quantize; it says something of speed only.

    model: a name of models.SHAPES or a file's path. MXFP4 goes to attention and feed-forward of a dense model, and to
    the experts of a mixture. A file whose name ends in the type is taken for itself.
    """
    if model not in models.SHAPES and model_name(model).endswith("." + kind):
        return pathlib.Path(model)
    if model in models.OWN_TYPE:
        return plain(bin_dir, root, model, donor)
    source = plain(bin_dir, root, model, donor)
    if kind == "F16":
        return source
    out = root / "models" / f"{model_name(model)}-{kind}.gguf"
    dense = ["--tensor-type", "attn=mxfp4", "--tensor-type", "ffn=mxfp4"] if model != "moe1b" else []
    options, to = (dense, "MXFP4_MOE") if kind == "MXFP4" else ([], kind)
    _made(out, [bin_dir / "llama-quantize", "--allow-requantize", *options, source, out, to],
          root / "logs" / f"quantize-{out.stem}.log")
    return out


def file_of(o, name, kind):
    """The file of smollm2, of a name of models.SHAPES (both in the type `kind`, made if it is not there), or of a path.
    o: has dir, jobs and smollm2, as the scripts' flags."""
    if name not in models.SHAPES and name != "smollm2":
        return pathlib.Path(name).resolve()
    name = str(o.smollm2) if name == "smollm2" else name
    return requantise(build("llama.cpp", o.dir, o.jobs), o.dir, name, kind, o.smollm2)
