#!/bin/sh
# usage: symbols.sh SHARED STATIC HEADER: both libraries show every function that the header
# declares, and nothing else.
set -e
declared=$(tr -d '\n' <"$3" | grep -o 'ATS_API[^;]*;' | grep -o '\bats_[a-z_]*(' | tr -d '(' | sort -u)
count=$(echo "$declared" | wc -l)
[ "$count" -gt 30 ] || { echo "only $count functions found in $3"; exit 1; }
status=0
check() { # NAME SYMBOLS
    if [ "$2" = "$declared" ]; then
        echo "$1: the $count functions of the header, nothing else"
    else
        status=1
        echo "$1 differs from the header (< declared, > in the library):"
        printf '%s\n' "$declared" >"$work/declared"
        printf '%s\n' "$2" >"$work/found"
        diff "$work/declared" "$work/found" | grep '^[<>]'
    fi
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# sanitizers and coverage add names of their own, all reserved ones
visible() { awk 'NF == 3 { print $3 }' | grep -v '^__' | sort -u; }
check "$1" "$(nm -D --defined-only "$1" | visible)"
check "$2" "$(nm -g --defined-only "$2" | visible)"
exit $status
