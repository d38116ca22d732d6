#!/bin/sh
# Installs the Claude program, which the tests of its backend run against a server of their own.
#
#   tools/claude_cli.sh [FOLDER [PYTHON]]
#
# FOLDER is where it goes, .claude-cli beside this folder unless said otherwise. Where the machine
# has no npm, Node is installed from PyPI into the virtual environment of PYTHON. What is there and
# runs is left as it is. The last line printed is the path of the program.

set -eu

tools=$(cd "$(dirname "$0")" && pwd)
folder=${1:-"$tools/../.claude-cli"}
python=${2:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
package=$folder/node_modules/@anthropic-ai/claude-code
program=$folder/node_modules/.bin/claude

# At home it would leave files of its own.
runs() { HOME=$folder/home "$program" --version </dev/null >/dev/null 2>&1; }

if ! runs; then
    . "$tools/with_npm.sh"
    # The script that npm would run after the installation puts the program in its place. Not every
    # npm does that unasked, so it is run here; nothing is fetched by it.
    npm_install "$folder" '@anthropic-ai/claude-code@^2.1'
    (cd "$package" && node install.cjs) >&2
    runs || { echo "The Claude program was installed, but does not run: $program" >&2; exit 1; }
fi

echo "$program"
