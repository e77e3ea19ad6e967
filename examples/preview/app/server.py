"""A guest book on one page. Its form has no action, so it is sent to the page's own URL, with the signature in it."""

import html
import http.server
import urllib.parse

ENTRIES: list[str] = []


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        with open("page.html", encoding="utf-8") as page:
            entries = "".join(f"<li>{html.escape(entry)}</li>" for entry in ENTRIES)
            body = page.read().replace("{entries}", entries).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        form = self.rfile.read(min(int(self.headers["Content-Length"]), 10_000)).decode()
        ENTRIES.extend(urllib.parse.parse_qs(form).get("entry", []))
        self.do_GET()


http.server.ThreadingHTTPServer(("", 8000), Page).serve_forever()
