#!/usr/bin/env python3
"""Download one file with a progress bar; an interrupted download goes on where it stopped.

usage: download.py [--sha256 HEX] [--certificates FILE] URL DEST

DEST.part grows until it is complete and, if a checksum is given, right; then it becomes DEST. Exit status 0, or 1
with a reason on stderr (whoever calls may have another way to get the file).
"""
import argparse
import fcntl
import hashlib
import http.client
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

CHUNK_BYTES = 1 << 18
ATTEMPTS = 5


class Progress:
    """A bar that is drawn over on a terminal; elsewhere a line per quarter."""

    def __init__(self, n_bytes, total_bytes):
        self.n, self.total = n_bytes, total_bytes
        self.start_n, self.start = n_bytes, time.monotonic()
        self.tty = sys.stderr.isatty()
        self.drawn, self.quarter = 0.0, 4 * n_bytes // total_bytes if total_bytes else 0

    def add(self, n_bytes):
        self.n += n_bytes
        now = time.monotonic()
        if self.tty and (now - self.drawn > 0.1 or self.n == self.total):
            self.drawn = now
            print("\r\033[K  " + self.text(now), end="", file=sys.stderr, flush=True)
        elif not self.tty and self.total and 4 * self.n // self.total > self.quarter:
            self.quarter = 4 * self.n // self.total
            print("  " + self.text(now), file=sys.stderr, flush=True)

    def text(self, now):
        rate = (self.n - self.start_n) / max(now - self.start, 1e-3)
        megabytes = f"{self.n / 1e6:.0f}"
        if not self.total:
            return f"{megabytes} MB, {rate / 1e6:.1f} MB/s"
        filled = 30 * self.n // self.total
        left = (self.total - self.n) / max(rate, 1.0)
        return (f"[{'#' * filled}{'.' * (30 - filled)}] {100 * self.n // self.total:3d}%  "
                f"{megabytes} of {self.total / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s, {left:.0f} s left")

    def close(self):
        if self.tty and self.drawn:
            print(file=sys.stderr)


def total_size(response, begin):
    """Size of the whole file, 0 if the server does not tell."""
    if response.status == 206:
        _, _, total = response.headers.get("Content-Range", "").rpartition("/")
        return int(total) if total.isdigit() else 0
    length = response.headers.get("Content-Length", "")
    return begin + int(length) if length.isdigit() else 0


def fetch_rest(url, part, context):
    """Appends what is missing to the open file `part`. True when the server says that all is there."""
    begin = part.seek(0, os.SEEK_END)
    headers = {"User-Agent": "atsinfer-fetch", "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60, context=context)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        return True  # nothing after what we have
    with response:
        if begin and (response.status != 206 or
                      not response.headers.get("Content-Range", "").startswith(f"bytes {begin}-")):
            begin = 0  # no ranges here: from the start again
            part.seek(0)
            part.truncate()
        total = total_size(response, begin)
        progress = Progress(begin, total)
        try:
            while chunk := response.read(CHUNK_BYTES):
                part.write(chunk)
                part.flush()
                progress.add(len(chunk))
        finally:
            progress.close()
        return not total or part.tell() >= total


def digest(part):
    part.seek(0)
    sha256 = hashlib.sha256()
    while chunk := part.read(1 << 20):
        sha256.update(chunk)
    return sha256.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sha256", default="")
    parser.add_argument("--certificates", default="", help="file of certificates to trust; empty: the system's")
    parser.add_argument("url")
    parser.add_argument("dest")
    args = parser.parse_args()
    context = ssl.create_default_context(cafile=args.certificates or None)
    part_path = args.dest + ".part"
    with open(part_path, "a+b") as part:
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("  waiting for another download of the same file", file=sys.stderr)
            fcntl.flock(part, fcntl.LOCK_EX)
        attempts = 0
        while True:
            before = part.seek(0, os.SEEK_END)
            try:
                if fetch_rest(args.url, part, context):
                    break
                reason = "the connection ended early"
            except (OSError, ValueError, http.client.HTTPException) as error:  # URLError is an OSError
                reason = str(error)
                if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                    attempts = ATTEMPTS
            attempts = 1 if part.seek(0, os.SEEK_END) > before else attempts + 1
            if attempts >= ATTEMPTS:
                if part.tell() == 0:
                    os.unlink(part_path)
                sys.exit(f"  download failed: {reason}")
            print(f"  {reason}; trying again", file=sys.stderr)
            time.sleep(attempts)
        if args.sha256 and digest(part) != args.sha256:
            os.unlink(part_path)
            sys.exit("  download has the wrong checksum; removed")
        os.replace(part_path, args.dest)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\n  interrupted; the next run goes on from here")
