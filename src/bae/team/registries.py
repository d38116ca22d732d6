"""The user's access to package registries: certificates, proxies, mirrors and logins. bae passes it
to the setup command, and to no other command. Passwords and tokens are masked in setup's output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from bae.lm import is_secret_name, remove_passwords
from bae.team.files import read_file


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """What a command needs for access to registries."""

    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The command's environment variables."""
    readable: tuple[str, ...] = ()
    """Files and folders that the variables or the settings name. The command may read them."""
    home: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings files, by their paths in the command's home directory."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Passwords and tokens to mask, the longest first."""

    def mask(self, text: str) -> str:
        """Replace passwords and tokens in a text."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return remove_passwords(text)


def find_access(
    environment: Mapping[str, str] | None = None, home: Path | None = None
) -> RegistryAccess:
    """Return the registry access of this process. The function reads files, so call it in a
    thread."""
    environment = os.environ if environment is None else environment
    home = home or Path.home()
    files = {name: path for name, path in _find_settings(environment, home) if path.is_file()}
    system_files = [path for path in map(Path, _SYSTEM) if path.is_file()]
    texts = [_read_settings(path) for path in (*files.values(), *system_files)]
    referenced = {name for text in texts for name in _REFERENCE.findall(text)}
    variables = {
        name: value
        for name, value in environment.items()
        if value and (name in referenced or _is_passed_on(name))
    }
    pythons = Path(environment.get("XDG_DATA_HOME") or home / ".local/share", "uv/python")
    if pythons.is_dir():  # uv uses a Python from there, because a downloaded Python would be lost
        variables.setdefault("UV_PYTHON_INSTALL_DIR", str(pythons))
    shared = {home, *home.parents}
    paths = [path for text in (*variables.values(), *texts) for path in _find_paths(text)]
    paths += system_files
    readable = dict.fromkeys(str(path) for path in paths if path not in shared and path.exists())
    secrets = {*_find_secrets(variables, texts)}
    return RegistryAccess(
        {**_FIXED, **variables},
        tuple(readable),
        {name: str(path) for name, path in files.items()},
        # The longest comes first, because a secret may be a part of a longer secret.
        tuple(sorted(secrets, key=len, reverse=True)),
    )


def _find_settings(environment: Mapping[str, str], home: Path) -> Iterator[tuple[str, Path]]:
    """Yield the user's settings files, each after its path in a home directory."""
    for name in _HOME:
        yield name, home / name
    folder = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    for name in _CONFIG:
        yield f".config/{name}", folder / name


def _read_settings(path: Path) -> str:
    return (read_file(path.resolve(), _LARGEST) or b"").decode("utf-8", "replace")


def _is_passed_on(name: str) -> bool:
    return any(fnmatchcase(name.lower(), pattern) for pattern in _VARIABLES)


def _find_paths(text: str) -> Iterator[Path]:
    for path_text in _PATH.findall(text):
        path = Path(os.path.normpath(path_text))
        # The index of a local registry links to folders beside it, so all of them must be readable.
        yield path.parent if path.name == "simple" and f"file://{path_text}" in text else path


def _find_secrets(variables: Mapping[str, str], texts: list[str]) -> Iterator[str]:
    secrets = [value for name, value in variables.items() if is_secret_name(name, value)]
    for text in texts:
        secrets += (value.strip("\"' ") for value in _SETTING.findall(text))
    for text in (*variables.values(), *texts):
        for url in _URL.findall(text):
            try:
                parts = urlsplit(str(url))
            except ValueError:
                continue
            secrets += filter(None, (parts.username, parts.password))
    for secret in secrets:
        for form in (secret, unquote(secret)):
            if len(form) >= _SHORTEST:
                yield form


_LARGEST: Final = 2**20
_SHORTEST: Final = 6
"""A shorter secret is masked only in URLs, because it may be a part of any word."""
_HOME: Final = (".npmrc", ".yarnrc", ".yarnrc.yml", ".pip/pip.conf", ".bunfig.toml")
_CONFIG: Final = (
    *("pip/pip.conf", "uv/uv.toml", "pypoetry/config.toml", "pypoetry/auth.toml"),
    *("pdm/config.toml", "pnpm/rc"),
)
_SYSTEM: Final = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "/etc/uv/uv.toml", "/etc/npmrc")
_VARIABLES: Final = (
    # certificates
    *("ssl_cert_file", "ssl_cert_dir", "requests_ca_bundle", "curl_ca_bundle", "pip_cert"),
    *("pip_client_cert", "ssl_client_cert", "node_extra_ca_certs", "node_use_system_ca"),
    *("git_ssl_cainfo", "git_ssl_capath", "nix_ssl_cert_file", "cargo_http_cainfo"),
    # proxies
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    # registries
    *("pip_index_url", "pip_extra_index_url", "pip_find_links", "pip_no_index", "pip_proxy"),
    *("pip_trusted_host", "pip_config_file", "pip_constraint", "pip_default_timeout"),
    *("pip_timeout", "pip_retries", "pip_only_binary", "pip_no_binary", "pip_prefer_binary"),
    *("uv_index", "uv_index_*", "uv_default_index", "uv_extra_index_url", "uv_find_links"),
    *("uv_no_index", "uv_http_*", "uv_request_timeout", "uv_native_tls", "uv_system_certs"),
    *("uv_insecure_host", "uv_config_file", "uv_constraint", "uv_python_install_dir"),
    *("npm_config_registry", "npm_config_@*", "npm_config_//*", "npm_config__auth*"),
    *("npm_config_userconfig", "npm_config_globalconfig", "npm_config_ca*file", "npm_config_ca"),
    *("npm_config_strict_ssl", "npm_config_proxy", "npm_config_https_proxy"),
    *("npm_config_noproxy", "npm_config_fetch_*", "npm_token", "node_auth_token"),
    *("yarn_registry", "yarn_npm_*", "yarn_http_proxy", "yarn_https_proxy", "yarn_https_ca_*"),
    *("poetry_repositories_*", "poetry_http_basic_*", "poetry_certificates_*", "pdm_pypi_*"),
    *("bun_config_registry", "bun_config_token", "corepack_npm_*"),
    *("goproxy", "goprivate", "gonoproxy", "gosumdb", "gonosumdb"),
)
"""Patterns for the names of the variables that setup gets, in lower case."""
_FIXED: Final = {
    "CI": "1",  # package managers ask no questions
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "UV_PYTHON_DOWNLOADS": "never",  # a download would be lost with the temporary home directory
    "POETRY_VIRTUALENVS_IN_PROJECT": "1",
    "COREPACK_ENABLE_DOWNLOAD_PROMPT": "0",
}
_REFERENCE: Final = re.compile(r"\$\{(\w+)\}")
_PATH: Final = re.compile(r"(?:^|(?<=[\s=\"',:])|(?<=file://))(/(?!/)[^\s\"',;:]+)")
_URL: Final = re.compile(r"\b[a-z][a-z+.-]{0,30}://[^\s\"'@/]+@[^\s\"',]+", re.IGNORECASE)
_SETTING: Final = re.compile(
    r"^[^#;\n]*(?:_auth|password|token|npmAuthIdent)[\"']?[ \t]*[=:][ \t]*(\S+)",
    re.IGNORECASE | re.MULTILINE,
)
