import { Api } from "./calls.js";
import { type EventOptions, type NumberedEvent, followEvents } from "./events.js";
import type { components, paths } from "./gen/lifecycle.js";
import { SandboxError, isKind } from "./errors.js";
import { type CallOptions, Http, newKey, shortly } from "./http.js";
import { Keys } from "./keys.js";
import { checkPolicy } from "./network.js";
import { transportTo } from "./proxy.js";
import { type Connection, Sandbox, type SandboxInfo, type SandboxState } from "./sandbox.js";
import { Snapshots } from "./snapshots.js";
import type { WebSocketConstructor } from "./websocket.js";

type CreateRequest = components["schemas"]["CreateSandboxRequest"];

/** Where the service is, and how to speak to it. */
export interface ClientOptions {
  /** The service's URL; `$SANDBOX_URL`, else `http://127.0.0.1:8080`. */
  url?: string;
  /** The service's key; `$SERVICE_API_KEY`. Without one no key is sent. */
  apiKey?: string;
  /** Milliseconds in which an answer must arrive; 60 s without it. */
  timeout?: number;
  /** Milliseconds for which a request that may be repeated is repeated; 10 s without it. */
  retryFor?: number;
  /** Milliseconds for which a stream tries to resume before it fails; 60 s without it. */
  resumeFor?: number;
  /**
   * The URL of an HTTP proxy that every request goes through, or false for none; without it, the environment names it:
   * `$HTTP_PROXY`, `$HTTPS_PROXY`, `$ALL_PROXY` and `$NO_PROXY`. In Node.js alone.
   */
  proxy?: string | false;
  /** Takes the place of the runtime's fetch, and of proxies for it. */
  fetch?: typeof fetch;
  /** Takes the place of the runtime's WebSocket, and of proxies for it. Terminals need it. */
  webSocket?: WebSocketConstructor;
}

/** What services want to be asked for where their users say nothing. */
export type CreateDefaults = components["schemas"]["CreateDefaults"];

/** What the contract has for services which publish no defaults. */
const fallback: CreateDefaults = {
  timeout: 3_600,
  resourceLimits: {},
  entrypoint: ["/opt/sandbox/execd-init", "idle"], // in every sandbox, whatever its image has
};

/** What to create. What is left out has the service's default, see {@link Client.defaults}. */
export interface CreateOptions extends CallOptions {
  /** Seconds after which the sandbox ends by itself. */
  timeout?: number;
  /** Its main program; the default one does nothing, so the sandbox stays idle until it is used. */
  entrypoint?: string[];
  /** Runs the image's own entrypoint and command; `entrypoint` must then be left out. */
  imageEntrypoint?: boolean;
  env?: Record<string, string>;
  metadata?: Record<string, string>;
  /** Such as `{ cpu: "500m", memory: "512Mi" }`. */
  resourceLimits?: CreateRequest["resourceLimits"];
  /** Credentials for a private registry. */
  auth?: NonNullable<NonNullable<CreateRequest["image"]>["auth"]>;
  /** The id of a snapshot that it begins with, in place of an image: what is left out is that of the snapshot. */
  snapshotId?: string;
  /** What the sandbox may reach; everything without it. An empty one is `invalid`. */
  networkPolicy?: NonNullable<CreateRequest["networkPolicy"]>;
  volumes?: NonNullable<CreateRequest["volumes"]>;
  /** What runs the sandbox, one of the `runtimeClasses` of the service's version. Without it, the service's default does. */
  runtimeClass?: NonNullable<CreateRequest["runtimeClass"]>;
  extensions?: NonNullable<CreateRequest["extensions"]>;
  /** When the sandbox falls asleep or ends by itself, such as `{ onIdle: "pause", idleSeconds: 30 }`. */
  lifecycle?: NonNullable<CreateRequest["lifecycle"]>;
  /** Milliseconds in which the sandbox must be Running; 5 minutes without it. */
  startTimeout?: number;
  /** Has the same create return the same sandbox for 24 hours, also to another process; with other options, it is a `conflict`. */
  idempotencyKey?: string;
}

/** Which sandboxes to list. */
export interface ListOptions extends CallOptions {
  /** Those in one of these states. */
  state?: SandboxState | SandboxState[];
  /** Those whose metadata holds all of these pairs. */
  metadata?: Record<string, string>;
}

/** How many sandboxes are asked for at a time. */
const pageSize = 100;
/** How often a list is read at most that changes meanwhile. */
const listAttempts = 5;

type ListQuery = NonNullable<paths["/v1/sandboxes"]["get"]["parameters"]["query"]>;

/** A client of the sandbox service. It holds no connection and needs no end. */
export class Client {
  /** Every operation of the service, typed from its contract. */
  readonly api: Api<paths>;
  /** The API keys of the service, for its administrators. */
  readonly keys: Keys;
  /** The snapshots of sandboxes. */
  readonly snapshots: Snapshots;
  readonly #connection: Connection;
  #defaults: CreateDefaults | undefined;

  constructor(options: ClientOptions = {}) {
    const url = (options.url ?? environment("SANDBOX_URL") ?? "http://127.0.0.1:8080").replace(/\/+$/, "");
    const key = options.apiKey ?? environment("SERVICE_API_KEY");
    if (options.fetch !== undefined && options.proxy !== undefined) {
      throw new SandboxError("invalid", "proxy: must not be given together with fetch, which does not use it");
    }
    const transport = transportTo(url, options.proxy);
    const http = new Http(url, { "User-Agent": "sandbox-typescript", ...(key === undefined ? {} : { "SERVICE-API-KEY": key }) }, {
      fetch: options.fetch ?? transport.fetch,
      timeout: options.timeout ?? 60_000,
      retryFor: options.retryFor ?? 10_000,
    });
    this.api = new Api<paths>(http);
    this.keys = new Keys(this.api);
    this.snapshots = new Snapshots(this.api);
    this.#connection = {
      api: this.api,
      resumeFor: options.resumeFor ?? 60_000,
      webSocket: options.webSocket === undefined ? transport.webSocket : async () => options.webSocket,
    };
  }

  /**
   * Creates a sandbox of an image, or of the service's default one, and waits until it is Running. A
   * cut connection never makes two of them. When
   * it does not become Running, it is deleted and the error says why: `failed`, with the reason of
   * the service as its code, or `timeout`. After the signal aborts that is tried for 5 seconds.
   */
  create(image?: string, options?: CreateOptions): Promise<Sandbox>;
  create(options: CreateOptions): Promise<Sandbox>;
  async create(first?: string | CreateOptions, second: CreateOptions = {}): Promise<Sandbox> {
    const named = typeof first === "string" ? first : undefined;
    const { resourceLimits, startTimeout = 300_000, idempotencyKey, auth, signal, ...rest } =
      typeof first === "object" ? first : second;
    signal?.throwIfAborted();
    checkPolicy(rest.networkPolicy);
    const call = signal ? { signal } : {};
    const kept = rest.snapshotId !== undefined;
    if (kept && named !== undefined) throw new SandboxError("invalid", "image: must not be given with a snapshotId");
    const own = kept || rest.imageEntrypoint === true || rest.entrypoint !== undefined;
    const complete = (kept || named !== undefined) && rest.timeout !== undefined && own;
    const defaults = complete ? fallback : await this.defaults(call);
    const image = kept ? undefined : named ?? defaults.image;
    if (image === undefined && !kept) {
      const why = "image: is required, because the service has no default one (server.default_image)";
      throw new SandboxError("invalid", why);
    }
    const body: CreateRequest = {
      ...(own ? {} : { entrypoint: defaults.entrypoint }),
      ...rest,
      ...(image === undefined ? {} : { image: { uri: image, ...(auth ? { auth } : {}) } }),
      timeout: rest.timeout ?? defaults.timeout,
      ...(kept && resourceLimits === undefined ? {} : { resourceLimits: resourceLimits ?? {} }),
    };
    const header = idempotencyKey === undefined ? newKey() : { "Idempotency-Key": idempotencyKey };
    const request = async (options: CallOptions) => {
      const created = await this.api.json("post", "/v1/sandboxes", { body, header }, { ...options, idempotent: true });
      return new Sandbox(this.#connection, { ...created, image: { uri: image ?? "" } });
    };
    const sandbox = await request(call).catch(async (error: unknown) => {
      // The request may have arrived: the same key finds the sandbox. The first error counts.
      if (signal?.aborted === true) {
        const soon = shortly();
        await request(soon).then((late) => late.delete(soon)).catch(() => undefined);
      }
      throw error;
    });
    try {
      await sandbox.wait("Running", { ...call, timeout: startTimeout });
    } catch (error) {
      await sandbox.delete(signal?.aborted === true ? shortly() : {}).catch(() => undefined); // the first error counts
      throw error;
    }
    return sandbox;
  }

  /** What {@link Client.create} asks for where its options say nothing, for this client's key. The service is asked once. */
  async defaults(options: CallOptions = {}): Promise<CreateDefaults> {
    this.#defaults ??= await this.api.json("get", "/v1/version", {}, options).then(
      (version) => version.defaults ?? fallback,
      (error: unknown) => {
        if (isKind(error, "not_found")) return fallback; // a service without extensions has no version
        throw error;
      },
    );
    return this.#defaults;
  }

  /** A sandbox that is there already, in whatever state. */
  async connect(id: string, options: CallOptions = {}): Promise<Sandbox> {
    return new Sandbox(this.#connection, await this.get(id, options));
  }

  /** A sandbox's details. */
  get(id: string, options: CallOptions = {}): Promise<SandboxInfo> {
    return this.api.json("get", "/v1/sandboxes/{sandboxId}", { path: { sandboxId: id } }, options);
  }

  /**
   * All sandboxes that match, newest first, each once. All pages are read before the first sandbox
   * comes, so that it may be deleted, and read again when the list changed meanwhile. What comes may
   * have another state since.
   */
  async *list(options: ListOptions = {}): AsyncGenerator<SandboxInfo, void, undefined> {
    const { state, metadata, signal } = options;
    const query: ListQuery = {
      pageSize,
      ...(state === undefined ? {} : { state: typeof state === "string" ? [state] : state }),
      ...(metadata ? { metadata: new URLSearchParams(metadata).toString() } : {}),
    };
    const found = new Map<string, SandboxInfo>();
    for (let attempt = 1; attempt <= listAttempts; attempt++) {
      if (await this.#readPages(found, query, signal ? { signal } : {})) break;
    }
    yield* [...found.values()].sort((a, b) => Date.parse(b.createdAt) - Date.parse(a.createdAt));
  }

  /**
   * Adds a list to what is found, by id. Returns whether it stayed the same from page to page: when a
   * sandbox leaves one page, another moves to a page that was read already.
   */
  async #readPages(found: Map<string, SandboxInfo>, query: ListQuery, options: CallOptions): Promise<boolean> {
    const totals = new Set<number>();
    for (let page = 1; ; page++) {
      const input = { query: { ...query, page } };
      const { items, pagination } = await this.api.json("get", "/v1/sandboxes", input, options);
      for (const item of items) found.set(item.id, item);
      totals.add(pagination.totalItems);
      if (!pagination.hasNextPage) return totals.size === 1;
    }
  }

  /**
   * What happens to all sandboxes that the key may read, from now on or after the event with an id.
   * It does not end. After `reset` events are missing: read the sandboxes themselves.
   */
  events(options: EventOptions = {}): AsyncGenerator<NumberedEvent, void, undefined> {
    return followEvents(this.api, this.#connection.resumeFor, undefined, options);
  }
}

/** An environment variable, where there is an environment that may be read. */
function environment(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return process?.env?.[name] || undefined;
}
