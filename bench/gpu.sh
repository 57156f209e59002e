#!/bin/sh
# For a machine with a GPU that Vulkan knows: builds, runs the correctness suite on the GPU, then
# measures prefill and decode with a quarter, a half, three quarters and all of the memory that the
# model wants there, against llama.cpp's Vulkan build with as much if that is there, and prints one
# table. Needs no network once the packages are installed: the model is made here. Under 8 minutes.
#
#   bench/gpu.sh                        the best GPU; without one it says so and fails
#   bench/gpu.sh --device vulkan1 --peer FOLDER      another one; where the peer's llama-bench is
#   bench/gpu.sh --no-suite             only the speeds
#   bench/gpu.sh --software             tries the script on the software device, with a small model
cd "$(dirname "$0")/.."
. scripts/common.sh

device='' software='' suite=1 peer='' build=build-gpu
while [ $# -gt 0 ]; do
    case $1 in
    --software) software=1 ;;
    --no-suite) suite='' ;;
    --device | --peer | --build)
        [ $# -ge 2 ] || die "$1 takes a value"
        case $1 in --device) device=$2 ;; --peer) peer=$2 ;; *) build=$2 ;; esac
        shift
        ;;
    *) die "usage: bench/gpu.sh [--device NAME] [--peer FOLDER] [--build FOLDER] [--no-suite] [--software]" ;;
    esac
    shift
done

gpu_start=$(date +%s)
need_bench() {
    need python3 has python3
    need libcmocka-dev has_header cmocka.h
}
install_missing need_build need_bench
configure "$build" --buildtype=release
step "building" gpu-build ninja -C "$build" || die "the build failed"

# NAME and kind of the device: the one that is asked for, else the first real one.
found=$("$build/atsinfer" doctor --json 2>/dev/null | python3 -c '
import json, sys
want, software = sys.argv[1], sys.argv[2]
for d in json.load(sys.stdin)["devices"]:
    if not d["usable"] or not d["name"].startswith("vulkan"):
        continue
    if d["name"] == want or not want and (software != "") == (d["kind"] == "software device"):
        print(d["name"] + "|" + d["kind"] + ", " + d["note"])
        break
' "$device" "$software")
[ -n "$found" ] || die "${device:-there is no GPU here}${device:+ is no usable device}; \`$build/atsinfer doctor\` says what there is and why. --software tries this script without a GPU."
device=${found%%|*}
say "$device: ${found#*|}"

suite_status=0
if [ -n "$suite" ]; then
    # The software device would need half an hour for all of it: ./check does that.
    if [ -n "$software" ]; then set -- backend/vulkan_device; else set -- --suite vulkan; fi
    step "correctness on $device" gpu-suite meson test -C "$build" --no-rebuild --print-errorlogs "$@" ||
        suite_status=$?
fi

set -- --ours "$build/atsinfer" --device "$device" --minutes 4
[ -z "$peer" ] || set -- "$@" --peer "$peer"
[ -z "$software" ] || set -- "$@" --software --csv "$log_dir/gpu-software.csv" # no figures to keep
python3 bench/budgets.py "$@" || die "the measurements failed"
say "in all $(($(date +%s) - gpu_start)) s"
[ "$suite_status" = 0 ] || die "the correctness suite FAILED: $log_dir/gpu-suite.log"
