import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { inspect } from "node:util";

import { SandboxError } from "@sandbox.internal/sdk";
import { proxyFor } from "#dist/proxy.js";

import { variable } from "../support.js";

type Environment = Record<string, string>;

function proxy(url: string, environment: Environment, option?: string | false): string | undefined {
  const found = proxyFor(new URL(url), option, environment);
  return found && `${found.source} ${found.url} ${found.authorization ?? ""}`.trim();
}

test("the exclusions are those of clients in Go", () => {
  const cases = JSON.parse(readFileSync(variable("PROXY_CASES"), "utf8")) as { noProxy: string; url: string; proxied: boolean }[];
  assert.ok(cases.length > 500);
  for (const { noProxy, url, proxied } of cases) {
    const found = proxy(url, { no_proxy: noProxy, http_proxy: "proxy", https_proxy: "proxy" });
    assert.equal(found !== undefined, proxied, `${url} with NO_PROXY=${noProxy}`);
  }
});

test("the variables have an order, and an option wins", () => {
  const names = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
  const all = Object.fromEntries(names.map((name, number) => [name, `http://proxy-${number}`]));
  for (const [url, scheme] of [["http://a.test", "http"], ["https://a.test", "https"]] as const) {
    const left = { ...all };
    for (const name of [`${scheme}_proxy`, `${scheme.toUpperCase()}_PROXY`, "all_proxy", "ALL_PROXY"]) {
      assert.equal(proxy(url, left), `${name} ${all[name]}`);
      left[name] = ""; // as if it was not there
    }
    assert.equal(proxy(url, left), undefined);
    assert.equal(proxy(url, { ...all, NO_PROXY: "a.test" }), undefined);
    assert.equal(proxy(url, all, false), undefined);
    assert.equal(proxy(url, { ...all, NO_PROXY: "*" }, "http://other"), "proxy http://other");
  }
  const evil = { HTTP_PROXY: "http://evil", http_proxy: "http://evil", REQUEST_METHOD: "GET" };
  assert.equal(proxy("http://a.test", evil), undefined);
  assert.ok(proxy("https://a.test", { HTTPS_PROXY: "http://proxy", REQUEST_METHOD: "GET" }));
});

test("a URL that is none of a proxy is an error that names the variable and shows no password", () => {
  const of = (HTTP_PROXY: string) => proxy("http://a.test", { HTTP_PROXY });
  assert.equal(of("proxy:3128"), "HTTP_PROXY http://proxy:3128");
  assert.equal(of("10.0.0.1:3128/x?y"), "HTTP_PROXY http://10.0.0.1:3128");
  assert.equal(of("https://u:p%40%3A@[::1]"), "HTTP_PROXY https://[::1] Basic dTpwQDo=");
  assert.equal(of("u@proxy"), "HTTP_PROXY http://proxy Basic dTo=");
  for (const bad of ["socks5://u:secret@proxy", "http://", "http://u:secret@", "http://u:secret@proxy:port", "http://proxy:99999",
    "http://u:secret@pro xy", "http://u:secret@proxy\r\nX: y", "http://u:secret@[::1", "ftp://secret", "://secret"]) {
    assert.throws(() => of(bad), (error) => {
      assert.ok(error instanceof SandboxError && error.kind === "invalid" && error.message.startsWith("HTTP_PROXY: must be"), `${bad}: ${error}`);
      assert.doesNotMatch(inspect(error), /secret/);
      return true;
    });
  }
  for (const bad of ["", "socks5://proxy"]) assert.throws(() => proxy("http://a.test", {}, bad), /proxy: must be/);
});
