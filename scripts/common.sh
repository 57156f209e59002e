# Shared by demo, check and scripts/*: installing what is missing, running a step with its output in
# a log. Sourced from the root of the source, never run. POSIX sh.
set -eu

log_dir=$PWD/build-logs
mkdir -p "$log_dir"

say() { printf '%s\n' "$*" >&2; }
die() {
    say "$(basename "$0"): $*"
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

# step LABEL LOG COMMAND...: one line of progress; on failure the end of the log. Returns its status.
step_tail=30
step() {
    step_label=$1 step_log=$log_dir/$2.log
    shift 2
    step_start=$(date +%s)
    step_watch=
    if [ -t 2 ]; then
        while :; do
            printf '\r\033[K  %s  %ss  %.60s' "$step_label" "$(($(date +%s) - step_start))" \
                "$(tail -n 1 "$step_log" 2>/dev/null | tr -d '\r\033')" >&2
            sleep 1
        done &
        step_watch=$!
        trap 'kill "$step_watch" 2>/dev/null; exit 130' INT TERM
    else
        printf '  %s ...' "$step_label" >&2
    fi
    step_status=0
    "$@" >"$step_log" 2>&1 </dev/null || step_status=$?
    if [ -n "$step_watch" ]; then
        kill "$step_watch" 2>/dev/null || true
        wait "$step_watch" 2>/dev/null || true
        trap - INT TERM
        printf '\r\033[K  %s' "$step_label" >&2
    fi
    step_seconds=$(($(date +%s) - step_start))
    if [ "$step_status" = 0 ]; then
        say "  done in $step_seconds s"
    else
        say "  FAILED after $step_seconds s; log: $step_log"
        [ "$step_tail" = 0 ] || tail -n "$step_tail" "$step_log" | sed 's/^/    /' >&2
    fi
    return "$step_status"
}

# What is needed, by probing for the thing itself; named as Debian and Ubuntu name the package.
missing=
need() {
    need_package=$1
    shift
    "$@" >/dev/null 2>&1 || case " $missing " in
    *" $need_package "*) ;;
    *) missing="$missing $need_package" ;;
    esac
}
has_header() { printf '#include <%s>\n' "$1" | gcc -E -; }
has_library() { pkg-config --exists "$1"; }
has_pip() { python3 -m pip --version; }
has_file() { ls "$@" | grep -q .; }

need_build() {
    need gcc has gcc
    need libc6-dev has_header stdio.h
    need meson has meson
    need ninja-build has ninja
    need pkg-config has pkg-config
    need libjansson-dev has_library jansson
    need libutf8proc-dev has_library libutf8proc
    need libedit-dev has_library libedit
    need libvulkan-dev has_header vulkan/vulkan_core.h
    need glslc has glslc
    need mesa-vulkan-drivers has_file /usr/share/vulkan/icd.d /etc/vulkan/icd.d
}
need_fetch() {
    need python3 has python3
    need python3-pip has_pip
}

# install_missing NEED_FUNCTION...: installs what the functions miss, or says how and leaves. Calls
# apt only when something is missing, so that a second run needs no network.
install_missing() {
    missing=
    for install_need in "$@"; do "$install_need"; done
    [ -n "$missing" ] || return 0
    install_command="apt-get install -y --no-install-recommends$missing"
    has apt-get || die "needed, by their Debian names:$missing. Install these, then run this again."
    install_sudo=
    if [ "$(id -u)" != 0 ]; then
        install_sudo=sudo
        if ! has sudo || ! { sudo -n true 2>/dev/null || { [ -t 0 ] && [ -t 2 ] && sudo -v; }; }; then
            die "some packages are missing and this is not root. Run this, then try again:
    sudo apt-get update && sudo $install_command"
        fi
    fi
    say "Installing:$missing"
    apt_env="env DEBIAN_FRONTEND=noninteractive"
    # Word splitting is meant in the next lines.
    step "package lists" apt-update $install_sudo $apt_env apt-get update ||
        say "  (going on with the lists there are)"
    step "packages" apt-install $install_sudo $apt_env apt-get -o DPkg::Lock::Timeout=120 \
        ${install_command#apt-get } || die "could not install; the command was: $install_command"
    missing=
    for install_need in "$@"; do "$install_need"; done
    [ -z "$missing" ] || die "still missing after installing:$missing"
}

# configure DIR OPTION...: a Meson build directory; one that exists keeps its options.
configure() {
    configure_dir=$1
    shift
    [ ! -f "$configure_dir/build.ninja" ] || return 0
    case $(meson --version) in
    0.*) die "Meson 1.0 or newer is needed, this is $(meson --version)" ;;
    esac
    step "configuring $configure_dir" "configure-$configure_dir" \
        meson setup "$configure_dir" "$@"
}
