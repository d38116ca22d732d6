#!/bin/sh
# Installs the client of AG-UI, which the server is tested with.
#
#   tools/ag_ui_client.sh [FOLDER [PYTHON]]
#
# FOLDER is where it goes, .ag-ui-client beside this folder unless said otherwise. Where the machine
# has no npm, Node is installed from PyPI into the virtual environment of PYTHON. What is there and
# can be loaded is left as it is. The last line printed is the path of the folder.

set -eu

tools=$(cd "$(dirname "$0")" && pwd)
folder=${1:-"$tools/../.ag-ui-client"}
python=${2:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
. "$tools/with_npm.sh"

loads() { (cd "$folder" && node -e 'new (require("@ag-ui/client").HttpAgent)({ url: "" })') >/dev/null 2>&1; }

if ! loads; then
    npm_install "$folder" '@ag-ui/client@^1.0'
    loads || { echo "The AG-UI client was installed, but cannot be loaded: $folder" >&2; exit 1; }
fi

echo "$folder"
