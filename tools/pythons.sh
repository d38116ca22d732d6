#!/bin/sh
# Finds the Pythons on this machine that bae can be tested with.
#
#   tools/pythons.sh         one line for each minor version, lowest first: 3.11 /path/to/python
#   tools/pythons.sh 3.12    the path of that one, or nothing
#
# Every candidate is run before it counts: a pyenv shim can be on PATH and fail, and a system
# Python can lack what it needs to make a virtual environment.

probe='
import sys, ensurepip, venv
if sys.version_info >= (3, 11) and sys.implementation.name == "cpython":
    # From inside a virtual environment, name the Python it was made from.
    print("%d.%d" % sys.version_info[:2], sys._base_executable)
'

candidates() {
    for name in python3.11 python3.12 python3.13 python3.14 python3; do
        (IFS=:; for dir in $PATH; do echo "$dir/$name"; done)
    done
    for python in "${HOME:-}"/.pyenv/versions/*/bin/python; do echo "$python"; done
}

found() {
    candidates | while read -r python; do
        [ -x "$python" ] && "$python" -c "$probe" </dev/null 2>/dev/null
    done | sort -s -t. -k2,2n | awk '!seen[$1]++'
}

if [ $# -eq 0 ]; then
    found
else
    found | while read -r minor python; do
        [ "$minor" = "$1" ] && echo "$python"
    done
    exit 0
fi
