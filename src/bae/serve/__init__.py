"""Graphs behind HTTP: an API to start, follow, answer and inspect runs, which FastAPI and Starlette
mount. `router` makes it; `auth` says who may do what."""

from typing import TYPE_CHECKING

from bae.rooms import export_lazily

if TYPE_CHECKING:
    from bae.serve.access import Auth, User, Verb, Visible, bearer, public
    from bae.serve.api import API, router
    from bae.serve.problems import Refused

__all__ = ["API", "Auth", "Refused", "User", "Verb", "Visible", "bearer", "public", "router"]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "access": "Auth User Verb Visible bearer public",
        "api": "API router",
        "problems": "Refused",
    },
)
