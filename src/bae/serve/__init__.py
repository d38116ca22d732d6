"""An HTTP API to start, follow, answer and inspect the runs of graphs. `router` makes the API.
FastAPI and Starlette can mount the API. The hook `auth` of `router` decides what each user may
do."""

from typing import TYPE_CHECKING

from bae.rooms import export_lazily

if TYPE_CHECKING:
    from bae.serve.access import Auth, User, Verb, Visible, bearer, public
    from bae.serve.api import API, router
    from bae.serve.drawing import draw_boxes
    from bae.serve.endpoints import ApiCall, Endpoint, Form
    from bae.serve.live import ServedFeed
    from bae.serve.problems import InputFault, Refused
    from bae.serve.server import listening
    from bae.serve.views import BoxView, EdgeView, GateView, Value

__all__ = [
    "API",
    "ApiCall",
    "Auth",
    "BoxView",
    "EdgeView",
    "Endpoint",
    "Form",
    "GateView",
    "InputFault",
    "Refused",
    "ServedFeed",
    "User",
    "Value",
    "Verb",
    "Visible",
    "bearer",
    "draw_boxes",
    "listening",
    "public",
    "router",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "access": "Auth User Verb Visible bearer public",
        "api": "API router",
        "drawing": "draw_boxes",
        "endpoints": "ApiCall Endpoint Form",
        "live": "ServedFeed",
        "problems": "InputFault Refused",
        "server": "listening",
        "views": "BoxView EdgeView GateView Value",
    },
    former={
        "LOOPBACK": ("serve.access", 'write "localhost", "127.0.0.1" and "[::1]"'),
    },
)
