#!/usr/bin/env python3
"""Count the cases of a `meson test` run, for ./check.

usage: count_tests.py LOG_JSON TALLY LABEL

LOG_JSON is Meson's testlog.json. A program that reports cases (cmocka's lines, or a last line `N passed, N failed`)
counts as that many, any other as one. Appends `passed N`, `failed N` and `skipped REASON` lines to TALLY; prints what
failed with the end of its output.
"""
import json
import re
import sys

CASE = re.compile(r"^\[\s*(OK|FAILED|SKIPPED)\s*\] (\S+)\s*$", re.M)
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed\s*$", re.M)
REASON = re.compile(r"^skipped: (.+)$", re.M)


def cases(test):
    """(passed, failed, skipped names, reasons) of one program."""
    output = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
    good = test["result"] in ("OK", "EXPECTEDFAIL")
    reasons = [reason.strip() for reason in REASON.findall(output) if reason.strip() != "none"]
    found = CASE.findall(output)
    if found:
        passed = sum(kind == "OK" for kind, _ in found)
        failed = len({name for kind, name in found if kind == "FAILED"})
        skipped = [name for kind, name in found if kind == "SKIPPED"]
        skipped = sorted(set(skipped))
    elif SUMMARY.search(output):
        passed, failed = map(int, SUMMARY.findall(output)[-1])
        skipped = []
    elif test["result"] == "SKIP":
        passed, failed, skipped = 0, 0, ["all"]
    else:
        passed, failed, skipped = int(good), int(not good), []
    if not good and test["result"] != "SKIP" and failed == 0:
        failed = 1  # it crashed, leaked or hung after its cases
    return passed, failed, skipped, reasons


def main():
    log, tally, label = sys.argv[1:4]
    total_passed = total_failed = 0
    lines = []
    try:
        with open(log) as file:
            tests = [json.loads(line) for line in file if line.strip()]
    except OSError:
        tests = []
    if not tests:
        print(f"    no test ran in {label}")
        total_failed = 1
    for test in tests:
        passed, failed, skipped, reasons = cases(test)
        total_passed += passed
        total_failed += failed
        name = test["name"].split(" / ")[-1]
        if skipped:
            why = reasons[0] if reasons else "the test says so"
            names = ", ".join(skipped[:3]) + (" ..." if len(skipped) > 3 else "")
            lines.append(f"skipped {label}: {name}: {len(skipped)} ({names}): {why}")
        else:
            lines += [f"skipped {label}: {name}: {reason}" for reason in reasons]
        if failed:
            output = ((test.get("stdout") or "") + "\n" + (test.get("stderr") or "")).strip().splitlines()
            shown = [line for line in output if not re.match(r"^\[(\s*(RUN|OK)\s*|=+)\]", line)]
            print(f"    FAILED {name}: {test['result']}, {failed} of {passed + failed} cases")
            print("\n".join("      " + line for line in shown[-25:]))
    with open(tally, "a") as file:
        file.write(f"passed {total_passed}\nfailed {total_failed}\n")
        file.writelines(line + "\n" for line in lines)
    print(f"    {total_passed} passed, {total_failed} failed")


if __name__ == "__main__":
    main()
