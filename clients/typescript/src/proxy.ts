import { SandboxError } from "./errors.js";
import type { WebSocketConstructor } from "./websocket.js";

/** An HTTP proxy. Its URL has no password. */
export interface Proxy {
  /** What named it, for errors. */
  source: string;
  url: string;
  /** What only the proxy may see. */
  authorization?: string;
}

type Environment = Record<string, string | undefined>;

/** How requests are sent. */
export interface Transport {
  fetch: typeof fetch;
  /** Undefined where the runtime has none. */
  webSocket(): Promise<WebSocketConstructor | undefined>;
}

/** Node.js, which leaves proxies to its programs. Deno and Bun read the environment themselves, and browsers have settings. */
const node = (() => {
  const { process, Deno, Bun } = globalThis as {
    process?: { versions?: { node?: string }; env: Environment; execArgv: string[] };
    Deno?: unknown;
    Bun?: unknown;
  };
  return process?.versions?.node !== undefined && Deno === undefined && Bun === undefined ? process : undefined;
})();

/** How requests to a URL are sent: through a proxy of an option, else of the environment, else directly. */
export function transportTo(base: string, option: string | false | undefined): Transport {
  if (node === undefined) {
    if (option !== undefined) throw new SandboxError("unsupported", "proxy: this runtime chooses the proxies of its requests itself");
    return runtime;
  }
  const proxy = URL.canParse(base) ? proxyFor(new URL(base), option, node.env) : undefined;
  if (proxy !== undefined) return through(proxy);
  const nodeProxies = node.env["NODE_USE_ENV_PROXY"] === "1" || [...node.execArgv, node.env["NODE_OPTIONS"]].join(" ").includes("--use-env-proxy");
  return option === false || nodeProxies ? through(undefined) : runtime;
}

const runtime: Transport = {
  fetch: (input, init) => fetch(input, init),
  // Node.js 20 has none of its own.
  webSocket: async () => globalThis.WebSocket ?? (node && (await import("undici")).WebSocket),
};

/** The code of an error that a proxy answers and that stays. */
export const refusedByProxy = "ERR_PROXY_REFUSED";
/** The codes of errors after which nothing was sent to the service. */
export const unconnected: unknown[] = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", refusedByProxy, "ERR_PROXY_UNAVAILABLE"];

/** Sends requests through a proxy, or directly whatever the runtime would do. */
function through(proxy: Proxy | undefined): Transport {
  const load = async () => {
    const { Agent, Pool, ProxyAgent, fetch, WebSocket } = await import("undici");
    if (proxy === undefined) {
      const agent = new Agent();
      return { fetch, WebSocket, requests: agent, upgrades: agent };
    }
    const options = {
      uri: proxy.url,
      ...(proxy.authorization === undefined ? {} : { token: proxy.authorization }),
      clientFactory: (origin: URL, pool: object) => new Tunnels(origin, pool),
    };
    /** Connections to the proxy. Of one that it refuses fetch would say only that it was cancelled. */
    class Tunnels extends Pool {
      override async connect(tunnel: Parameters<InstanceType<typeof Pool>["connect"]>[0]): Promise<never> {
        const answer = await super.connect(tunnel);
        if (answer.statusCode === 200) return answer as never;
        answer.socket.on("error", () => undefined).destroy();
        throw new Error(`Proxy response (${answer.statusCode})`);
      }
    }
    // Many proxies connect to port 443 alone, and forward no upgrade.
    return { fetch, WebSocket, requests: new ProxyAgent({ ...options, proxyTunnel: false }), upgrades: new ProxyAgent(options) };
  };
  let loading: ReturnType<typeof load> | undefined;
  const loaded = () => (loading ??= load());
  const send = async (input: unknown, init: object | undefined) => {
    const { fetch, requests } = await loaded();
    const answer = await fetch(input as string, { ...init, dispatcher: requests }).catch((error: unknown) => {
      throw proxy === undefined ? error : ofProxy(proxy, error);
    });
    if (proxy === undefined || answer.status !== 407) return answer;
    await answer.body?.cancel();
    throw refusal(proxy, 407);
  };
  return {
    fetch: send as unknown as typeof fetch,
    webSocket: async () => {
      const { WebSocket, upgrades } = await loaded();
      return class {
        constructor(url: string) {
          return new WebSocket(url, { dispatcher: upgrades });
        }
      } as unknown as WebSocketConstructor;
    },
  };
}

/** An error of a request through a proxy, which says so. */
function ofProxy(proxy: Proxy, error: unknown): unknown {
  const cause: unknown = error instanceof Error ? error.cause : undefined;
  if (!(cause instanceof Error)) return error;
  const status = /^Proxy response \((\d+)\)/.exec(cause.message)?.[1] ?? /^Proxy Authentication Required \((407)\)/.exec(cause.message)?.[1];
  if (status !== undefined) return refusal(proxy, Number(status));
  // The proxy looks up the service's name and connects to it, so these are about the proxy itself.
  if (!("code" in cause && unconnected.includes(cause.code))) return error;
  const reasons = cause instanceof AggregateError ? cause.errors.map(String).join("; ") : cause.message;
  return failed(`the proxy ${proxy.url} of ${proxy.source} cannot be reached: ${reasons}`, cause.code);
}

function refusal(proxy: Proxy, status: number): Error {
  const why = status === 407 ? ` Proxy Authentication Required: the user or password in ${proxy.source} is missing or wrong` : "";
  const stays = status < 500 && status !== 429;
  return failed(`the proxy ${proxy.url} of ${proxy.source} refused the request: ${status}${why}`, stays ? refusedByProxy : "ERR_PROXY_UNAVAILABLE");
}

/** An error as fetch has it. */
function failed(message: string, code: unknown): Error {
  return new TypeError("fetch failed", { cause: Object.assign(new Error(message), { code }) });
}

/**
 * The proxy of a service, if there is one. The rules are those of Go's golang.org/x/net/http/httpproxy, and in
 * addition ALL_PROXY.
 */
export function proxyFor(service: URL, option: string | false | undefined, environment: Environment): Proxy | undefined {
  if (option !== undefined) return option === false ? undefined : parseProxy("proxy", option);
  const first = (...names: string[]) => names.find((name) => environment[name]);
  const tls = service.protocol === "https:";
  // In a CGI program HTTP_PROXY is the header Proxy of whoever sent the request.
  const own = tls ? ["https_proxy", "HTTPS_PROXY"] : environment["REQUEST_METHOD"] ? [] : ["http_proxy", "HTTP_PROXY"];
  const name = first(...own, "all_proxy", "ALL_PROXY");
  if (name === undefined || excluded(service, environment[first("no_proxy", "NO_PROXY") ?? ""] ?? "")) return undefined;
  return parseProxy(name, environment[name] ?? "");
}

function parseProxy(source: string, text: string): Proxy {
  try {
    if (/[\s\p{C}]/u.test(text)) throw new TypeError("it has spaces");
    const url = new URL(text.includes("://") ? text : `http://${text}`);
    if (!["http:", "https:"].includes(url.protocol) || url.port === "0") throw new TypeError("it is of another protocol");
    const pair = `${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`;
    const bytes = Array.from(new TextEncoder().encode(pair), (byte) => String.fromCharCode(byte)).join("");
    return { source, url: url.origin, ...(pair === ":" ? {} : { authorization: `Basic ${btoa(bytes)}` }) };
  } catch {
    // Its text may have a password, so the error has nothing of it.
    throw new SandboxError("invalid", `${source}: must be the URL of an HTTP proxy, such as http://proxy:3128 or https://user:password@proxy`);
  }
}

/** Whether a service is on this machine or among the hosts of NO_PROXY. */
function excluded({ hostname, port, protocol }: URL, noProxy: string): boolean {
  const address = parseAddress(hostname.replace(/^\[|\]$/g, ""));
  if (hostname === "localhost" || isLoopback(address)) return true;
  const service = { name: hostname, address, port: port || (protocol === "https:" ? "443" : "80") };
  return noProxy.split(",").some((entry) => matches(entry.trim().toLowerCase(), service));
}

interface Service {
  name: string;
  address: Address | undefined;
  port: string;
}

function matches(entry: string, { name, address, port }: Service): boolean {
  if (entry === "*") return true;
  const network = parseNetwork(entry);
  if (network !== undefined) return address?.bits === network.bits && address.value >> network.rest === network.value >> network.rest;
  let [, host, only] = /^\[([^\]]*)\]:([^:]*)$/.exec(entry) ?? /^([^:]*):([^:]*)$/.exec(entry) ?? [entry, entry, ""];
  if (!host || (only && only !== port)) return false;
  const wanted = parseAddress(host);
  if (wanted !== undefined || address !== undefined) return wanted?.bits === address?.bits && wanted?.value === address?.value;
  if (host.startsWith("*.")) host = host.slice(1);
  const below = host.startsWith(".");
  const domain = asciiName(below ? host.slice(1) : host);
  return name.endsWith(`.${domain}`) || (!below && name === domain);
}

function asciiName(name: string): string {
  const url = `http://${name}`;
  return /^[\x00-\x7f]*$/.test(name) || !URL.canParse(url) ? name : new URL(url).hostname;
}

interface Address {
  bits: 32 | 128;
  value: bigint;
}

function isLoopback(address: Address | undefined): boolean {
  return address !== undefined && (address.bits === 32 ? address.value >> 24n === 127n : address.value === 1n);
}

/** An address; one of IPv4 in IPv6 is the one of IPv4. */
function parseAddress(text: string): Address | undefined {
  const four = /^(0|[1-9]\d{0,2})\.(0|[1-9]\d{0,2})\.(0|[1-9]\d{0,2})\.(0|[1-9]\d{0,2})$/.exec(text)?.slice(1).map(BigInt);
  if (four !== undefined) return four.every((part) => part < 256n) ? { bits: 32, value: four.reduce((sum, part) => (sum << 8n) | part, 0n) } : undefined;
  if (!/^[0-9a-f:.]*:[0-9a-f:.]*$/i.test(text) || !URL.canParse(`http://[${text}]`)) return undefined;
  const [head = "", tail] = new URL(`http://[${text}]`).hostname.slice(1, -1).split("::");
  const parts = (side: string) => side.split(":").filter(Boolean);
  const [before, after] = [parts(head), parts(tail ?? "")];
  const all = [...before, ...Array<string>(8 - before.length - after.length).fill("0"), ...after];
  const value = all.reduce((sum, part) => (sum << 16n) | BigInt(`0x${part}`), 0n);
  return value >> 32n === 0xffffn ? { bits: 32, value: value & 0xffffffffn } : { bits: 128, value };
}

/** A network, and how many bits of an address are free in it. */
function parseNetwork(text: string): (Address & { rest: bigint }) | undefined {
  const [, base = "", digits = ""] = /^([^/]+)\/(\d{1,3})$/.exec(text) ?? [];
  const address = parseAddress(base);
  const bits = base.includes(":") ? 128 : 32;
  const size = Number(digits);
  if (address === undefined || digits === "" || size > bits) return undefined;
  return { ...address, rest: BigInt(Math.min(bits - size, address.bits)) };
}
