#!/usr/bin/env python3
"""Write the words of a SPIR-V module as a C initialiser list: spirv_to_c.py IN.spv OUT.inc"""
import sys
import array

with open(sys.argv[1], "rb") as file:
    words = array.array("I", file.read())
with open(sys.argv[2], "w") as file:
    lines = (",".join(f"{word:#010x}" for word in words[i:i + 8]) for i in range(0, len(words), 8))
    file.write("{" + ",\n".join(lines) + "}\n")
