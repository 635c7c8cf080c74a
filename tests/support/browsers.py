"""What a browser sends to a port when a page tells it to: a page of any site may, without asking anybody."""


def post(body: bytes, *, path: bytes = b"/") -> bytes:
    """A POST as `fetch(url, {method: "POST", mode: "no-cors", body})` makes it."""
    head = (
        b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nConnection: keep-alive\r\nContent-Length: %d\r\n"
        b"Origin: https://example.org\r\nContent-Type: text/plain;charset=UTF-8\r\nAccept: */*\r\n\r\n"
    )
    return head % (path, len(body)) + body
