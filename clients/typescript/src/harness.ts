import type { Client, CreateOptions } from "./client.js";
import { SandboxError, isKind } from "./errors.js";
import { type RestrictedHarnessSession, callOf, restrictedSession } from "./harness-session.js";
import type { NetworkPolicy } from "./network.js";
import type { Sandbox } from "./sandbox.js";

/** What is used of `@ai-sdk/harness`: its errors, which it recognizes. */
export interface HarnessErrors {
  HarnessCapabilityUnsupportedError: new (details: { message: string; cause?: unknown }) => Error;
  HarnessSandboxAuthenticationError: new (details: { message: string; sandboxProviderId: string; cause?: unknown }) => Error;
}

/** How {@link harnessSandboxes} makes sandboxes. */
export interface HarnessOptions extends Omit<CreateOptions, "signal" | "snapshotId" | "idempotencyKey"> {
  /** The image; the service's default one without it. */
  image?: string;
  /** The ports that sessions name, which harnesses reach their programs by; none without it. */
  ports?: readonly number[];
  /** The directory of commands and relative paths, made when it is missing; the image's without it. */
  cwd?: string;
  /** Whether `stop` ends the processes and keeps the files alone; without it, it keeps the processes and their memory. */
  filesOnly?: boolean;
  /** Seconds after which the snapshot that `onFirstCreate` has prepared expires; 7 days without it. */
  templateTtl?: number;
}

/** What a session may reach: `HarnessV1NetworkPolicy` of the AI SDK. */
export type HarnessNetworkPolicy =
  | { mode: "allow-all" | "deny-all" }
  | {
      mode: "custom";
      allowedHosts?: readonly string[] | undefined;
      allowedCIDRs?: readonly string[] | undefined;
      deniedCIDRs?: readonly string[] | undefined;
    };

/** Which port to reach, and by what. */
interface PortOptions {
  port: number;
  protocol?: "http" | "https" | "ws" | undefined;
}

/** A sandbox of a session: `HarnessV1NetworkSandboxSession` of the AI SDK. */
export interface HarnessSession extends RestrictedHarnessSession {
  readonly id: string;
  readonly defaultWorkingDirectory: string;
  readonly ports: readonly number[];
  getPortEndpoint(options: PortOptions): Promise<{ url: string; headers: Record<string, string> }>;
  getPortUrl(options: PortOptions): Promise<string>;
  /** Pauses the sandbox, so that the session can be resumed. Succeeds when it is paused or has ended. */
  stop(): Promise<void>;
  /** Deletes the sandbox. Succeeds when it has ended. */
  destroy(): Promise<void>;
  setNetworkPolicy(policy: HarnessNetworkPolicy): Promise<void>;
  setPorts(ports: readonly number[]): Promise<void>;
  restricted(): RestrictedHarnessSession;
}

/** How a session is made. */
interface SessionOptions {
  sessionId?: string | undefined;
  abortSignal?: AbortSignal | undefined;
  identity?: string | undefined;
  onFirstCreate?:
    | ((session: RestrictedHarnessSession, options: { abortSignal?: AbortSignal }) => Promise<void>)
    | undefined;
}

/** What is to be done once for an identity. */
type FirstCreate = { identity: string; onFirstCreate: NonNullable<SessionOptions["onFirstCreate"]> };

/** What makes sandboxes for sessions: `HarnessV1SandboxProvider` of the AI SDK. */
export interface HarnessSandboxes {
  readonly specificationVersion: "harness-sandbox-v1";
  readonly providerId: string;
  createSession(options?: SessionOptions): Promise<HarnessSession>;
  resumeSession(options: { sessionId: string; abortSignal?: AbortSignal | undefined }): Promise<HarnessSession>;
}

const providerId = "sandbox-service";
/** The metadata of sandboxes and snapshots: the session, what has been prepared in the sandbox, and what the snapshot has. */
const tags = { session: "ai-sdk.session", prepared: "ai-sdk.prepared", template: "ai-sdk.template" };
/** The states of a sandbox that no session can have any more. */
const over: string[] = ["Stopping", "Terminated", "Failed"];
const week = 7 * 24 * 3_600;

/**
 * Sandboxes for the harnesses of the [AI SDK](https://www.npmjs.com/package/@ai-sdk/harness). This module
 * imports nothing of the framework: it is given the errors of the version that is used.
 *
 * ```ts
 * import * as harness from "@ai-sdk/harness";
 * import { Client, harnessSandboxes } from "@sandbox.internal/sdk";
 *
 * const sandbox = harnessSandboxes(harness, new Client(), { image: "node:24", ports: [4000] });
 * ```
 *
 * A session has one sandbox, however often and by however many processes it is created or resumed. The
 * effect of `onFirstCreate` is kept in a snapshot where the service has snapshots; elsewhere it runs in each
 * new sandbox. There are no request transformations: the framework sees that by their absence.
 */
export function harnessSandboxes(harness: HarnessErrors, client: Client, options: HarnessOptions = {}): HarnessSandboxes {
  const maker = new Maker(client, options, (message) => new harness.HarnessCapabilityUnsupportedError({ message }));
  const known = <T>(request: Promise<T>): Promise<T> =>
    request.catch((error: unknown) => {
      if (!isKind(error, "unauthorized", "forbidden")) throw error;
      throw new harness.HarnessSandboxAuthenticationError({ message: error.message, sandboxProviderId: providerId, cause: error });
    });
  return {
    specificationVersion: "harness-sandbox-v1",
    providerId,
    createSession: (session = {}) => known(maker.create(session)),
    resumeSession: ({ sessionId, abortSignal }) => known(maker.resume(sessionId, abortSignal)),
  };
}

/** Makes and finds the sandboxes of sessions. */
class Maker {
  /** Ends when no template is being looked for or made: two calls of this process never prepare the same. */
  #turns: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly client: Client,
    private readonly options: HarnessOptions,
    private readonly unsupported: (message: string) => Error,
  ) {}

  /** The sandbox of a session, which is created when there is none. */
  async create(options: SessionOptions, again = true): Promise<HarnessSession> {
    const { sessionId, identity, onFirstCreate, abortSignal } = options;
    const first = identity === undefined || onFirstCreate === undefined ? undefined : { identity, onFirstCreate };
    const { found, ended = "" } = sessionId === undefined ? {} : await this.#find(sessionId, abortSignal);
    let sandbox = found;
    if (sandbox === undefined) {
      const snapshotId = first && (await this.#inTurn(first, abortSignal));
      try {
        sandbox = await this.#make({
          metadata: {
            ...(sessionId === undefined ? {} : { [tags.session]: sessionId }),
            ...(first && snapshotId !== undefined ? { [tags.prepared]: first.identity } : {}),
          },
          ...(snapshotId === undefined ? {} : { snapshotId }),
          // The key of an ended sandbox would return that one.
          ...(sessionId === undefined ? {} : { idempotencyKey: `ai-sdk-${await hexOf(`${sessionId} ${ended}`)}` }),
          ...callOf(abortSignal),
        });
      } catch (error) {
        // Another process has created it meanwhile; or the sandbox of the key is forgotten, and the key free from now on.
        if (sessionId !== undefined && again && isKind(error, "conflict")) return this.create(options, false);
        throw error;
      }
    }
    let preparing = false;
    try {
      const session = await this.#attach(sandbox, abortSignal);
      if (first && sandbox.info.metadata?.[tags.prepared] !== first.identity) {
        preparing = true;
        await first.onFirstCreate(session.restricted(), abortSignal ? { abortSignal } : {});
        await sandbox.updateMetadata({ [tags.prepared]: first.identity }, callOf(abortSignal));
      }
      return session;
    } catch (error) {
      // One that could not be prepared is of no use. Otherwise that of a session may be another caller's by now.
      if (found === undefined && (preparing || sessionId === undefined)) await sandbox.delete().catch(() => undefined); // the first error counts
      throw error;
    }
  }

  /** The sandbox of a session that was created before. */
  async resume(sessionId: string, signal: AbortSignal | undefined): Promise<HarnessSession> {
    const { found } = await this.#find(sessionId, signal);
    if (found === undefined) throw new SandboxError("not_found", `session ${sessionId}: has no sandbox, or it has ended`);
    return this.#attach(found, signal);
  }

  #make(own: CreateOptions): Promise<Sandbox> {
    const { image, ports: _ports, cwd: _cwd, filesOnly: _filesOnly, templateTtl: _ttl, ...create } = this.options;
    const whole = { ...create, ...own, metadata: { ...create.metadata, ...own.metadata } };
    return image === undefined || own.snapshotId !== undefined ? this.client.create(whole) : this.client.create(image, whole);
  }

  /** The sandbox of a session, or else the last one of the session that has ended. */
  async #find(sessionId: string, signal: AbortSignal | undefined): Promise<{ found?: Sandbox; ended?: string }> {
    let ended: string | undefined;
    for await (const { id, status } of this.client.list({ metadata: { [tags.session]: sessionId }, ...callOf(signal) })) {
      if (!over.includes(status.state)) return { found: await this.client.connect(id, callOf(signal)) };
      ended ??= id;
    }
    return ended === undefined ? {} : { ended };
  }

  /** Has a sandbox run that was stopped or is being made, and makes a session of it. */
  async #attach(sandbox: Sandbox, signal: AbortSignal | undefined): Promise<HarnessSession> {
    const { startTimeout: timeout = 300_000, cwd, filesOnly = false, ports = [] } = this.options;
    const call = callOf(signal);
    if (sandbox.info.status.state === "Pausing") await sandbox.wait("Paused", { ...call, timeout });
    if (sandbox.info.status.state === "Paused") {
      await sandbox.resume(call).catch(async (error: unknown) => {
        if (!isKind(error, "conflict") || (await sandbox.refresh(call)).status.state === "Paused") throw error;
      }); // of two that resume it at once, the other was first
    }
    if (sandbox.info.status.state !== "Running") await sandbox.wait("Running", { ...call, timeout });
    const directory = await directoryOf(sandbox, cwd, signal);
    return sessionOf(sandbox, directory, { filesOnly, ports, unsupported: this.unsupported });
  }

  #inTurn(first: FirstCreate, signal: AbortSignal | undefined): Promise<string | undefined> {
    const turn = this.#turns.then(() => this.#template(first, signal));
    this.#turns = turn.catch(() => undefined);
    return turn;
  }

  /** The snapshot with the effect of `onFirstCreate`, made when it is missing; undefined where the service has no snapshots. */
  async #template({ identity, onFirstCreate }: FirstCreate, signal: AbortSignal | undefined): Promise<string | undefined> {
    const { image = "", cwd = "", templateTtl: ttl = week } = this.options;
    const metadata = { [tags.template]: await hexOf(JSON.stringify([identity, image, cwd])) };
    try {
      for await (const { id } of this.client.snapshots.list({ state: "Ready", metadata, ...callOf(signal) })) return id;
    } catch (error) {
      if (isKind(error, "internal") && error.status === 501) return undefined;
      throw error;
    }
    const sandbox = await this.#make(callOf(signal));
    try {
      const session = await this.#attach(sandbox, signal);
      await onFirstCreate(session.restricted(), signal ? { abortSignal: signal } : {});
      return (await sandbox.snapshot({ metadata, ttl, ...callOf(signal) })).id;
    } finally {
      await sandbox.delete().catch(() => undefined); // else it ends at its expiry
    }
  }
}

/** A text of any length as 64 characters. */
async function hexOf(text: string): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The directory of commands. */
async function directoryOf(sandbox: Sandbox, wanted: string | undefined, signal: AbortSignal | undefined): Promise<string> {
  if (wanted !== undefined) {
    if (!wanted.startsWith("/")) throw new SandboxError("invalid", `cwd: must be an absolute path, is ${wanted}`);
    await sandbox.files.makeDirectory(wanted, callOf(signal));
    return wanted;
  }
  const { stdout, exitCode } = await sandbox.commands.run("pwd", callOf(signal));
  const directory = stdout.replace(/\n$/, "");
  if (exitCode !== 0 || !directory.startsWith("/")) throw new SandboxError("failed", `${sandbox.id}: has no working directory`);
  return directory;
}

/** What a session may do, and how. */
interface Limits {
  filesOnly: boolean;
  ports: readonly number[];
  unsupported: (message: string) => Error;
}

function sessionOf(sandbox: Sandbox, directory: string, { filesOnly, ports, unsupported }: Limits): HarnessSession {
  const restricted = () => restrictedSession(sandbox, directory, unsupported);
  let named = [...ports];
  const getPortEndpoint: HarnessSession["getPortEndpoint"] = async ({ port, protocol }) => {
    if (!named.includes(port)) throw unsupported(`port ${port}: is none of the ports of the session, [${named.join(", ")}]`);
    const { url, headers } = await sandbox.endpoint(port);
    if (protocol === "https" && !url.startsWith("https:")) throw unsupported(`port ${port}: the service has no https`);
    return { url: protocol === "ws" ? url.replace(/^http/, "ws") : url, headers };
  };
  return {
    ...restricted(),
    id: sandbox.id,
    defaultWorkingDirectory: directory,
    get ports() {
      return named;
    },
    getPortEndpoint,
    async getPortUrl(options) {
      const { url, headers } = await getPortEndpoint(options);
      const needed = Object.keys(headers);
      if (needed.length > 0) throw unsupported(`getPortUrl: port ${options.port} needs the headers ${needed.join(", ")}: use getPortEndpoint`);
      return url;
    },
    async stop() {
      try {
        await sandbox.pause({ filesOnly });
      } catch (error) {
        if (isKind(error, "not_found") && error.code === "SANDBOX_NOT_FOUND") return;
        if (!isKind(error, "conflict", "failed")) throw error;
        const { state } = (await sandbox.refresh()).status;
        if (state !== "Paused" && state !== "Pausing" && !over.includes(state)) throw error;
      }
    },
    destroy: () => sandbox.delete(),
    async setNetworkPolicy(policy) {
      await sandbox.network.replace(policyOf(policy));
    },
    async setPorts(all) {
      named = [...all];
    },
    restricted,
  };
}

/** A policy in the words of the service. A denied address wins over the names and addresses after it. */
function policyOf(policy: HarnessNetworkPolicy): NetworkPolicy {
  if (policy.mode !== "custom") return { defaultAction: policy.mode === "allow-all" ? "allow" : "deny", egress: [] };
  const { deniedCIDRs = [], allowedCIDRs = [], allowedHosts = [] } = policy;
  return {
    defaultAction: "deny",
    egress: [
      ...deniedCIDRs.map((target) => ({ action: "deny" as const, target })),
      ...[...allowedCIDRs, ...allowedHosts].map((target) => ({ action: "allow" as const, target })),
    ],
  };
}
