"""The form with which a browser logs in."""

from starlette.responses import HTMLResponse, Response

from brokers.page import shown


def form(text: str) -> Response:
    """In place of the view that was asked for, which is then loaded again. `text`: why it is shown."""
    return HTMLResponse(shown.render("login.html", text=text), 401)
