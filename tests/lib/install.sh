#!/bin/sh
# usage: install.sh BUILD SOURCE BUILT_EXAMPLE
# Installs into a folder of its own, builds the example there as a user would, against the shared
# and against the static library, and compares what all three builds of it answer. CC and CFLAGS as
# given. ATS_SHARED=none: only the errors are looked at.
set -e
build=$1 example=$2/examples/chat.c built=$3
shared_dir=${ATS_SHARED:-$2/../shared}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}

DESTDIR=$root meson install -C "$build" --no-rebuild >"$root/install.log" 2>&1 ||
    { cat "$root/install.log"; fail "meson install"; }
pc=$(find "$root" -name atsinfer.pc)
[ -n "$pc" ] || fail "atsinfer.pc is not installed"
prefix=$(sed -n 's/^prefix=//p' "$pc")
export PKG_CONFIG_PATH="${pc%/*}"
config() { pkg-config --define-variable=prefix="$root$prefix" "$@" atsinfer; }
libdir=$root$(pkg-config --variable=libdir atsinfer)
[ -f "$root$prefix/include/atsinfer.h" ] || fail "atsinfer.h is not installed"
[ -f "$libdir/libatsinfer.so" ] && [ -f "$libdir/libatsinfer.a" ] || fail "a library is missing"

cd "$root"
$CC $CFLAGS -Wall -Wextra -Werror "$example" $(config --cflags --libs) -o shared ||
    fail "building with the shared library"
$CC $CFLAGS -Wall -Wextra -Werror "$example" \
    $(config --static --cflags --libs | sed 's/-latsinfer/-l:libatsinfer.a/') -o static ||
    fail "building with the static library"
export LD_LIBRARY_PATH="$libdir"
ldd shared | grep -q "$libdir/libatsinfer.so.0" || fail "the shared library is not the installed one"
if ldd static | grep -q libatsinfer; then fail "the static program needs the library"; fi

# a header that C++ can read
if command -v c++ >/dev/null; then
    printf '#include <atsinfer.h>\nint main() { ats_options o; ats_options_default(&o); }\n' >cxx.cc
    c++ -Wall -Wextra -Werror -fsyntax-only $(config --cflags) cxx.cc || fail "the header in C++"
fi

for program in ./shared ./static "$built"; do
    if "$program" missing.gguf >out 2>err; then fail "$program: no error for a missing file"; fi
    grep -q missing.gguf err || fail "$program: the error does not name the file"
    [ -s out ] && fail "$program: printed something"
    if "$program" >out 2>err; then fail "$program: no error without a model"; fi
    [ "$shared_dir" = none ] && continue
    model=$shared_dir/models/llama/llama-f16.gguf
    if "$program" "$model" 'no json' >out 2>err; then fail "$program: no error for bad JSON"; fi
    "$program" "$model" >answer 2>err || { cat err; fail "$program does not answer"; }
    [ "$(wc -c <answer)" -gt 10 ] || fail "$program answers too little"
    [ -f first ] || cp answer first
    cmp first answer || fail "$program answers something else"
done
if [ "$shared_dir" = none ]; then echo "skipped: installed and linked, but no oracle to ask"; exit 77; fi
echo "installed; the example answers alike from three builds"
