import { Api } from "./calls.js";
import { Code } from "./code.js";
import { Commands } from "./commands.js";
import { SandboxError, clean, isKind } from "./errors.js";
import { Files } from "./files.js";
import type { components as insideComponents, paths as ExecdPaths } from "./gen/execd.js";
import type { components, paths } from "./gen/lifecycle.js";
import { type CallOptions, newKey } from "./http.js";
import type { Inside } from "./inside.js";
import { type LogOptions, logs } from "./logs.js";
import { Network } from "./network.js";
import { type EventOptions, type NumberedEvent, followEvents } from "./events.js";
import { type Lineage, type Snapshot, type SnapshotOptions, Snapshots, takeSnapshot } from "./snapshots.js";
import { numbered, resumable } from "./resume.js";
import { Terminals } from "./terminals.js";
import type { WebSocketConstructor } from "./websocket.js";

/** A sandbox's details. */
export type SandboxInfo = components["schemas"]["Sandbox"];
/** The state of a sandbox; there may be others than those of the contract. */
export type SandboxState = components["schemas"]["SandboxState"];
/** How to reach a port. */
export type Endpoint = components["schemas"]["Endpoint"];
/** One thing that a client has done in a sandbox, or does. */
export type ActivityEntry = components["schemas"]["ActivityEntry"];
/** What keeps a sandbox awake. */
export type Holds = components["schemas"]["Holds"];
/** When a sandbox falls asleep or ends by itself. */
export type Lifecycle = components["schemas"]["SandboxLifecycle"];
/** For how long to keep a sandbox awake, and in how many seconds to wake it: one of both at least. */
export type KeepAwakeRequest = insideComponents["schemas"]["KeepAwakeRequest"];
/** What was granted: until when it is kept awake, and when it is woken. */
export type KeptAwake = insideComponents["schemas"]["KeptAwake"];
/** Processor and memory use. */
export type Metrics = insideComponents["schemas"]["Metrics"];

/** What sandboxes need of their client. */
export interface Connection {
  api: Api<paths>;
  resumeFor: number;
  webSocket: () => Promise<WebSocketConstructor | undefined>;
}

/** How many sandboxes a fork makes, and what is different in them. */
export interface ForkOptions extends CallOptions {
  /** How many, at most 100; 1 without it. */
  count?: number;
  /** Seconds that each lives; without it as long as the sandbox was to. */
  timeout?: number;
  /** The environment variables of each: they have none of those of the sandbox. */
  env?: Record<string, string>;
  /** Milliseconds in which all must be Running; 5 minutes without it. */
  startTimeout?: number;
}

/** Why one sandbox of a fork is not there. */
export type ForkError = components["schemas"]["Error"];

/** The reasons of a sandbox that could not be started after a reboot of its host, or not be rolled back. */
const notResumed = ["RESUME_FAILED", "ROLLBACK_FAILED"];

/** The reasons of a sandbox that is Paused until a request wakes it. */
const asleep = ["IDLE", "TIMEOUT", "HIBERNATED", "HIBERNATED_FILES"];

/** How long one request waits for a state, in seconds; the service permits 60. */
const longestWait = 30;
const path = "/v1/sandboxes/{sandboxId}";

/**
 * A sandbox. Its daemon is reached through the service, below `/v1/sandboxes/{id}/proxy/44772`: that
 * works from wherever the service itself is reached, with its key alone.
 *
 * `await using sandbox = await client.create(...)` deletes it at the end of the scope.
 */
export class Sandbox implements AsyncDisposable {
  readonly id: string;
  readonly commands: Commands;
  readonly code: Code;
  readonly files: Files;
  readonly terminals: Terminals;
  readonly network: Network;
  /** Every operation of the sandbox's daemon, typed from its contract. */
  readonly api: Api<ExecdPaths>;
  readonly #connection: Connection;
  readonly #api: Api<paths>;
  readonly #resumeFor: number;
  readonly #inside: Inside;
  readonly #input: { path: { sandboxId: string } };
  #info: SandboxInfo;

  /** Use the methods of a client. */
  constructor(connection: Connection, info: SandboxInfo) {
    this.#connection = connection;
    this.#api = connection.api;
    this.#resumeFor = connection.resumeFor;
    this.#info = info;
    this.id = info.id;
    this.#input = { path: { sandboxId: info.id } };
    const { api, resumeFor, webSocket } = connection;
    const below = `/v1/sandboxes/${encodeURIComponent(info.id)}/proxy/44772`;
    this.api = new Api<ExecdPaths>(api.http.below(below));
    this.#inside = { api: this.api, resumeFor };
    this.commands = new Commands(this.#inside);
    this.code = new Code(this.#inside);
    this.files = new Files(this.#inside);
    this.terminals = new Terminals(this.#inside, { lifecycle: api, webSocket }, info.id);
    this.network = new Network(api, info.id, resumeFor);
  }

  /** What the service said last about the sandbox; {@link Sandbox.refresh} asks again. */
  get info(): SandboxInfo {
    return this.#info;
  }

  /** Asks the service about the sandbox. */
  async refresh(options: CallOptions = {}): Promise<SandboxInfo> {
    return (this.#info = await this.#api.json("get", path, this.#input, options));
  }

  /**
   * Waits for a state, which the service's events report, for at most `timeout` milliseconds. A
   * sandbox that ends in another one, or could not be resumed, is an error of the kind `failed`. One
   * that sleeps counts as Running: a request wakes it.
   */
  async wait(state: SandboxState, options: CallOptions & { timeout?: number } = {}): Promise<SandboxInfo> {
    const { timeout, signal } = options;
    const late = new AbortController();
    const forward = () => late.abort(signal?.reason);
    if (signal?.aborted === true) forward();
    signal?.addEventListener("abort", forward, { once: true });
    const expire = () => late.abort(new SandboxError("timeout", `${this.id}: not ${state} within ${timeout} ms`));
    const timer = timeout === undefined ? undefined : setTimeout(expire, timeout);
    const call = { signal: late.signal };
    try {
      // The service itself waits for the end of what is under way. Events report what takes longer.
      const input = { ...this.#input, header: { Prefer: `wait=${longestWait}` } };
      this.#info = await this.#api.json("get", path, input, { ...call, longer: longestWait * 1_000 });
      if (this.#reached(state)) return this.#info;
      for await (const { type, to } of this.events(call)) {
        const news = type === "reset" || (type === "state" && (to === state || to === "Paused" || isFinal(to)));
        if (!news) continue;
        await this.refresh(call);
        if (this.#reached(state)) return this.#info;
      }
      throw new SandboxError("failed", `${this.id}: is forgotten and was not ${state}`);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", forward);
    }
  }

  #reached(wanted: SandboxState): boolean {
    const { state, reason } = this.#info.status;
    if (wanted === "Running" && state === "Paused" && asleep.includes(reason)) return true;
    const stuck = wanted === "Running" && state === "Paused" && notResumed.includes(reason);
    if (state === wanted || (!isFinal(state) && !stuck)) return state === wanted;
    throw this.#failure();
  }

  #failure(): SandboxError {
    const { state, reason, message } = this.#info.status;
    const text = `${this.id}: is ${clean(state)} (${clean(reason)}): ${clean(message)}`;
    return new SandboxError("failed", text, { code: clean(reason) });
  }

  /**
   * Stops all processes and keeps their memory; returns when the sandbox is Paused. With
   * `filesOnly` it ends the processes and keeps the files; {@link Sandbox.resume} starts the entrypoint
   * again. Services on Docker and Kubernetes refuse that.
   */
  pause({ filesOnly = false, ...options }: CallOptions & { filesOnly?: boolean } = {}): Promise<SandboxInfo> {
    return this.#change("pause", "Paused", options, filesOnly ? { filesOnly } : {});
  }

  /**
   * Lets a Paused sandbox go on; returns when it is Running. After a reboot of its host it starts the
   * sandbox again; when that fails, the error is `failed` and the sandbox is Paused as before.
   */
  resume(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#change("resume", "Running", options);
  }

  async #change(
    verb: "pause" | "resume", state: SandboxState, options: CallOptions, body?: components["schemas"]["PauseSandboxRequest"],
  ): Promise<SandboxInfo> {
    await this.#api.json("post", `${path}/${verb}`, { ...this.#input, ...(body && { body }) }, options);
    return this.wait(state, options);
  }

  /**
   * Keeps the files of the sandbox, which is Running or Paused, and returns once they are kept; its
   * processes stand still for a moment. The request is not repeated when its answer was lost:
   * {@link Sandbox.snapshots} shows whether it had its effect.
   */
  snapshot(options: SnapshotOptions = {}): Promise<Snapshot> {
    return takeSnapshot(this.#api, this.id, options);
  }

  /** The snapshots and sandboxes that the sandbox is related to, as far as the key may read them. */
  lineage(options: CallOptions = {}): Promise<Lineage> {
    return this.#api.json("get", "/v1/sandboxes/{sandboxId}/lineage", { path: { sandboxId: this.id } }, options);
  }

  /** The snapshots of the sandbox that the key may read, newest first. */
  snapshots(options: CallOptions = {}): AsyncGenerator<Snapshot, void, undefined> {
    return new Snapshots(this.#api).list({ ...options, sandboxId: this.id });
  }

  /**
   * Gives the sandbox the files of a snapshot, or of the one with an id; returns when it is Running
   * again. Its processes end, and with a snapshot of memory those go on that it has; its id, endpoints
   * and token stay.
   */
  async rollback(snapshot: Snapshot | string, options: CallOptions = {}): Promise<SandboxInfo> {
    const body = { snapshotId: typeof snapshot === "string" ? snapshot : snapshot.id };
    await this.#api.json("post", `${path}/rollback`, { ...this.#input, body }, options);
    await this.wait("Running", options);
    if (notResumed.includes(this.#info.status.reason)) throw this.#failure();
    return this.#info;
  }

  /**
   * Makes sandboxes that begin with the files of this one, and returns them once they are Running, or
   * in the place of one why it was not made. They have none of its processes, and `env` is all of
   * their environment. A cut connection never makes them twice.
   */
  async fork(options: ForkOptions = {}): Promise<(Sandbox | ForkError)[]> {
    const { signal, startTimeout = 300_000, ...body } = options;
    const call = signal ? { signal } : {};
    const input = { ...this.#input, body, header: newKey() };
    const { items } = await this.#api.json("post", `${path}/fork`, input, { ...call, idempotent: true });
    const end = Date.now() + startTimeout;
    const forks: (Sandbox | ForkError)[] = [];
    for (const { sandbox, error } of items) {
      if (sandbox === undefined) {
        forks.push(error ?? { code: "UNKNOWN", message: "no message", detail: "no message" });
        continue;
      }
      const fork = new Sandbox(this.#connection, sandbox);
      await fork.wait("Running", { ...call, timeout: Math.max(1, end - Date.now()) });
      forks.push(fork);
    }
    return forks;
  }

  /** Moves the expiry to so many seconds from now; it can only move forward. */
  async renew(seconds: number, options: CallOptions = {}): Promise<Date> {
    const expiresAt = new Date(Date.now() + seconds * 1_000).toISOString();
    const input = { ...this.#input, body: { expiresAt } };
    const renewed = await this.#api.json("post", `${path}/renew-expiration`, input, options);
    this.#info = { ...this.#info, expiresAt: renewed.expiresAt };
    return new Date(renewed.expiresAt);
  }

  /** Ends the sandbox. Succeeds when it has ended already, or is gone. */
  async delete(options: CallOptions = {}): Promise<void> {
    try {
      await this.#api.json("delete", path, this.#input, options);
    } catch (error) {
      if (isKind(error, "not_found") && error.code === "SANDBOX_NOT_FOUND") return;
      if (!isKind(error, "conflict") || !isFinal((await this.refresh(options)).status.state)) throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.delete();
  }

  /** Changes metadata: a string sets its key, null removes it. Returns all of it. */
  async updateMetadata(
    patch: Record<string, string | null>,
    options: CallOptions = {},
  ): Promise<Record<string, string>> {
    const call = { ...options, idempotent: true }; // the same keys get the same values
    const input = { ...this.#input, body: patch };
    const metadata = await this.#api.json("patch", `${path}/metadata`, input, call);
    this.#info = { ...this.#info, metadata };
    return metadata;
  }

  /** How to reach a port: its URL, and headers that every request needs. Treat them as a secret. */
  endpoint(port: number, options: CallOptions = {}): Promise<Endpoint> {
    const input = { path: { ...this.#input.path, port } };
    return this.#api.json("get", `${path}/endpoints/{port}`, input, options);
  }

  /** The URL of a port that needs no key for so many seconds, for a browser or a webhook. */
  async signedUrl(port: number, seconds: number, options: CallOptions = {}): Promise<string> {
    const input = { path: { ...this.#input.path, port }, query: { expires: String(seconds) } };
    return (await this.#api.json("get", `${path}/endpoints/{port}`, input, options)).url;
  }

  /** The bytes that the entrypoint printed; with `follow`, until the sandbox ends. */
  logs(options: LogOptions = {}): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
    return logs(this.#api, this.id, options, this.#resumeFor);
  }

  /**
   * What happened to the sandbox, from its first event or after the one with an id, and what happens
   * from now on, until its record is forgotten. Pings are left out.
   */
  events(options: EventOptions = {}): AsyncGenerator<NumberedEvent, void, undefined> {
    return followEvents(this.#api, this.#resumeFor, this.id, options);
  }

  /**
   * What clients have done in the sandbox, by which key and through what client; those at the end
   * changed last. The daemon in the sandbox has recorded it: it is no audit log.
   */
  async activity(options: CallOptions = {}): Promise<ActivityEntry[]> {
    return (await this.#api.json("get", `${path}/activity`, this.#input, options)).entries;
  }

  /** What clients have done and do: each entry when it begins, and again when it has ended. It does not end. */
  async *watchActivity(options: CallOptions = {}): AsyncGenerator<ActivityEntry, void, undefined> {
    const { signal } = options;
    const call = { ...options, accept: "text/event-stream" };
    const open = (how: "open" | "once", last?: string) =>
      this.#api[how]("get", `${path}/activity/watch`, {
        ...this.#input,
        ...(last === undefined ? {} : { header: { "Last-Event-ID": last } }),
      }, call);
    const entries = numbered<ActivityEntry>({
      name: `the activity of ${this.id}`,
      start: () => open("open"),
      resume: (last) => open("once", last),
      resumeFor: this.#resumeFor,
      signal,
    });
    for await (const { data } of entries) yield data;
  }

  /** What keeps the sandbox awake. One that sleeps is not woken by it. */
  async holds(options: CallOptions = {}): Promise<Holds> {
    return this.#api.json("get", `${path}/holds`, this.#input, options);
  }

  /** Changes when the sandbox falls asleep or ends by itself, and returns what holds then. */
  async updateLifecycle(change: Lifecycle, options: CallOptions = {}): Promise<Lifecycle> {
    const call = { ...options, idempotent: true };
    const lifecycle = await this.#api.json("patch", `${path}/lifecycle`, { ...this.#input, body: change }, call);
    this.#info = { ...this.#info, lifecycle };
    return lifecycle;
  }

  /**
   * Keeps the sandbox from being taken for idle for some seconds, or has it woken after some. What is
   * asked for under a name takes the place of what was asked for under it before.
   */
  async keepAwake(request: KeepAwakeRequest, options: CallOptions = {}): Promise<KeptAwake> {
    return this.#inside.api.json("post", "/holds", { body: request }, options);
  }

  /** Processor and memory use now. */
  async metrics(options: CallOptions = {}): Promise<Metrics> {
    return this.#inside.api.json("get", "/metrics", {}, options);
  }

  /** Processor and memory use, every second. It does not end. */
  watchMetrics(options: CallOptions = {}): AsyncGenerator<Metrics, void, undefined> {
    const call = { ...options, accept: "text/event-stream" };
    return resumable<Metrics>({
      name: `the metrics of ${this.id}`,
      start: () => this.#inside.api.open("get", "/metrics/watch", {}, call),
      resume: () => this.#inside.api.once("get", "/metrics/watch", {}, call),
      resumeFor: this.#inside.resumeFor,
      signal: options.signal,
    });
  }
}

function isFinal(state: SandboxState | undefined): boolean {
  return state === "Terminated" || state === "Failed";
}
