"""The form with which a browser logs in."""

from starlette.responses import HTMLResponse, Response

from brokers.page import shown


def form(text: str) -> Response:
    """The login form, sent in place of a view; after the login the view loads. `text`: why it is shown."""
    return HTMLResponse(shown.render("login.html", text=text), 401)
