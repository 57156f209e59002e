"""What the benchmark scripts share: what the machine is, and whether others were using it while a command ran.

Linux only (/proc). A sample counts as clean when everything else on the machine, the hypervisor's steal included,
took less than CLEAN of all CPU time while it ran (or less than CLEAN_S seconds: the kernel counts in ticks of 10 ms).
"""
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import threading
import time

CLEAN, CLEAN_S = 0.03, 0.03
QUIET_S, WAIT_S = 0.4, 20
FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "asimd",
         "asimddp", "i8mm", "sve")
HZ = os.sysconf("SC_CLK_TCK")

HERE = pathlib.Path(__file__).resolve().parent
DATA = pathlib.Path(os.environ.get("XDG_DATA_HOME") or pathlib.Path.home() / ".local/share") / "atsinfer/models"
SMOLLM2 = DATA / "SmolLM2-135M-Instruct.Q4_1.gguf"


def git_version():
    """The commit, and whether anything but results differs from it; "?": there is no git, or no repository."""
    if not shutil.which("git"):
        return "?"
    git = ["git", "-C", HERE]
    commit = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True).stdout.strip()
    same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)bench/results"], capture_output=True)
    return (commit or "?") + ("-dirty" if same.returncode == 1 else "")


def describe():
    """One row's worth of the machine, as a dict of strings."""
    info = {}
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            key, _, value = line.partition(":")
            info.setdefault(key.strip(), value.strip())
    have = (info.get("flags") or info.get("Features") or "").split()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": info.get("model name") or platform.machine(), "cpus": str(len(os.sched_getaffinity(0))),
            "flags": " ".join(x for x in FLAGS if x in have), "ram_gib": f"{pages / 2**30:.0f}"}


def busy_s():
    """CPU seconds that the whole machine has spent working since boot (steal included, guest time counted once)."""
    with open("/proc/stat", encoding="utf-8") as f:
        user, nice, system, _, _, irq, softirq, steal = (int(x) for x in f.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / HZ


AWAKE = []  # open while processors are kept awake


def keep_awake():
    """From now on idle processors poll and do not halt, by the kernel's own switch (a latency of 0 for /dev/cpu_dma_latency,
    until it is closed; root only). Waking one that has halted takes a virtual machine's host 50 us and more, hardware 1 or
    2: where threads wake each other hundreds of times in a token, what is measured otherwise is the host.
    """
    AWAKE.append(open("/dev/cpu_dma_latency", "wb", buffering=0))
    AWAKE[0].write(bytes(4))


def wait_quiet():
    """Wait, at most WAIT_S, for a moment in which nobody else computes."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        b, t = busy_s(), time.monotonic()
        time.sleep(QUIET_S)
        if (busy_s() - b) / (time.monotonic() - t) < 0.08:
            return


def bandwidth(root, threads, *what):
    """GB/s that memory gives right now (bandwidth.c, built below the peers' directory); `what` may be "copy"."""
    source, program = HERE / "bandwidth.c", root / "bandwidth"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        root.mkdir(parents=True, exist_ok=True)
        subprocess.run([os.environ.get("CC", "cc"), "-O3", "-march=native", "-pthread", "-o", program, source], check=True)
    return float(subprocess.run([program, str(threads), *what], capture_output=True, check=True).stdout)


def run(command, limit_s, wait=True):
    """Run a command in a folder of its own (paths have to be whole ones), after a quiet moment unless the caller has
    waited for one. Returns (stdout, usage); raises RuntimeError with its last words if it fails.

    usage: stderr, what it said there; wall_s, from before fork to after exit; peak_bytes, its greatest resident set,
    mapped file pages included; foreign, the share of all CPU time that others took meanwhile; clean, whether that was
    little.
    """
    if wait:
        wait_quiet()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryDirectory() as folder:
        before, start = busy_s(), time.monotonic()
        p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder)
        alarm = threading.Timer(limit_s, p.kill)
        alarm.start()
        _, status, used = os.wait4(p.pid, 0)
        wall = time.monotonic() - start
        p.returncode = os.waitstatus_to_exitcode(status)
        alarm.cancel()
        foreign_s = max(0.0, busy_s() - before - used.ru_utime - used.ru_stime)
        out.seek(0)
        err.seek(0)
        text, words = out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace")
    if p.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {p.returncode}\n{words[-500:]}")
    whole = wall * os.cpu_count()
    return text, {"stderr": words, "wall_s": wall, "peak_bytes": used.ru_maxrss * 1024, "foreign": foreign_s / whole,
                  "clean": foreign_s < max(CLEAN * whole, CLEAN_S)}
