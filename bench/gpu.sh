#!/bin/sh
# For a machine with a GPU that Vulkan knows: builds, runs the correctness suite on the GPU, then
# measures prefill and decode with a quarter, a half, three quarters and all of the memory that the
# model wants there, against llama.cpp's Vulkan build with as much if that is there, and prints one
# table. Needs no network once the packages are installed: the model is made here, below the build
# folder. Under 8 minutes: the suite is stopped after 150 s, which is then said, and measuring ends
# with what there is.
#
#   bench/gpu.sh                        the best GPU; without one it says so and fails
#   bench/gpu.sh --device vulkan1 --peer FOLDER      another one; where the peer's llama-bench is
#   bench/gpu.sh --no-suite             only the speeds
#   bench/gpu.sh --software             tries the script on the software device, with a small model
cd "$(dirname "$0")/.."
. scripts/common.sh

whole_seconds=450 suite_seconds=150
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

# NAME and kind of the device: the one that is asked for, else the best real one.
"$build/atsinfer" doctor --json >"$log_dir/gpu-doctor.json" 2>"$log_dir/gpu-doctor.log" ||
    die "\`$build/atsinfer doctor --json\` failed: $log_dir/gpu-doctor.log"
found=$(python3 -c '
import json, sys
path, want, software = sys.argv[1:]
kinds = ["software device"] if software else ["discrete GPU", "integrated GPU", "virtual GPU", "other device"]
devices = [d for d in json.load(open(path))["devices"] if d["usable"] and d["name"].startswith("vulkan")]
devices = [d for d in devices if (d["name"] == want if want else d["kind"] in kinds)]
for d in sorted(devices, key=lambda d: kinds.index(d["kind"]) if d["kind"] in kinds else 0)[:1]:
    print(d["name"] + "|" + d["kind"] + ", " + d["note"])
' "$log_dir/gpu-doctor.json" "$device" "$software")
[ -n "$found" ] || die "${device:-there is no GPU here}${device:+ is no usable device}; \`$build/atsinfer doctor\` says what there is and why. --software tries this script without a GPU."
device=${found%%|*}
say "$device: ${found#*|}"

suite_status=0
if [ -n "$suite" ]; then
    # The software device would need half an hour for all of it: ./check does that.
    if [ -n "$software" ]; then set -- backend/vulkan_device; else set -- --suite vulkan; fi
    step "correctness on $device" gpu-suite env ATSINFER_VK_DEVICE="${device#vulkan}" \
        timeout "$suite_seconds" meson test -C "$build" --no-rebuild --print-errorlogs "$@" ||
        suite_status=$?
    [ "$suite_status" != 124 ] ||
        say "  not all of it in $suite_seconds s; the rest: ATSINFER_VK_DEVICE=${device#vulkan} meson test -C $build --suite vulkan"
fi

# At least a minute, whatever the rest took.
left=$((whole_seconds - ($(date +%s) - gpu_start)))
[ "$left" -ge 60 ] || left=60
set -- --ours "$build/atsinfer" --device "$device" --folder "$build" --minutes "$(python3 -c "print($left / 60)")"
[ -z "$peer" ] || set -- "$@" --peer "$peer"
[ -z "$software" ] || set -- "$@" --software --csv "$log_dir/gpu-software.csv" # no figures to keep
python3 bench/budgets.py "$@" || die "the measurements failed"
say "in all $(($(date +%s) - gpu_start)) s"
[ "$suite_status" = 0 ] || die "the correctness suite FAILED or did not end: $log_dir/gpu-suite.log"
