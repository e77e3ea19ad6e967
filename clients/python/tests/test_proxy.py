"""Which proxy a client uses. The cases of $PROXY_CASES are what clients in Go do."""

from __future__ import annotations

import json
import os
import traceback
import unittest
from typing import Literal

from sandboxes._http1 import Origin
from sandboxes._proxy import proxy_for


class Proxies(unittest.TestCase):
    """Which proxy the environment names."""

    def proxy(self, url: str, option: str | Literal[False] | None = None, **environment: str) -> str | None:
        found = proxy_for(Origin(url), option, environment)
        return None if found is None else f"{found.source} {found.url} {dict(found.headers).get('Proxy-Authorization', '')}".strip()

    def test_exclusions_are_those_of_go(self) -> None:
        with open(os.environ["PROXY_CASES"], encoding="utf-8") as file:
            cases = json.load(file)
        self.assertGreater(len(cases), 500)
        for case in cases:
            found = self.proxy(case["url"], no_proxy=case["noProxy"], http_proxy="proxy", https_proxy="proxy")
            self.assertEqual(found is not None, case["proxied"], case)

    def test_variables(self) -> None:
        names = {name: f"http://{name.lower().replace('_', '-')}{3 if name.isupper() else 2}"
                 for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")}
        for url, order in (("http://a.test", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]),
                           ("https://a.test", ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])):
            left = dict(names)
            for name in order:
                self.assertEqual(self.proxy(url, None, **left), f"{name} {names[name]}")
                left[name] = ""  # as if it was not there
            self.assertIsNone(self.proxy(url, None, **left))
            self.assertIsNone(self.proxy(url, None, **names, NO_PROXY="a.test"))
            self.assertIsNone(self.proxy(url, False, **names))
            self.assertEqual(self.proxy(url, "http://other", **names, NO_PROXY="*"), "proxy http://other")
        self.assertIsNone(self.proxy("http://a.test", HTTP_PROXY="http://evil", http_proxy="http://evil", REQUEST_METHOD="GET"))
        self.assertIsNotNone(self.proxy("https://a.test", HTTPS_PROXY="http://proxy", REQUEST_METHOD="GET"))

    def test_urls(self) -> None:
        self.assertEqual(self.proxy("http://a.test", HTTP_PROXY="proxy:3128"), "HTTP_PROXY http://proxy:3128")
        self.assertEqual(self.proxy("http://a.test", HTTP_PROXY="10.0.0.1:3128/x?y"), "HTTP_PROXY http://10.0.0.1:3128")
        self.assertEqual(self.proxy("http://a.test", HTTP_PROXY="https://u:p%40%3A@[::1]"), "HTTP_PROXY https://[::1] Basic dTpwQDo=")
        self.assertEqual(self.proxy("http://a.test", HTTP_PROXY="u@proxy"), "HTTP_PROXY http://proxy Basic dTo=")
        for bad in ("socks5://u:secret@proxy", "http://", "http://u:secret@", "http://u:secret@proxy:port", "http://proxy:99999",
                    "http://u:secret@pro xy", "http://u:secret@proxy\r\nX: y", "http://u:secret@[::1", "ftp://secret", "://secret"):
            with self.subTest(bad), self.assertRaisesRegex(ValueError, "^HTTP_PROXY: must be") as refused:
                self.proxy("http://a.test", HTTP_PROXY=bad)
            self.assertNotIn("secret", "".join(traceback.format_exception(refused.exception)))
        for bad in ("", "socks5://proxy"):
            with self.assertRaisesRegex(ValueError, "^proxy: must be"):
                self.proxy("http://a.test", bad)
