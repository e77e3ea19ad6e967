import type { Api } from "./calls.js";
import { SandboxError, clean } from "./errors.js";
import type { components, paths } from "./gen/lifecycle.js";
import { type CallOptions, newKey } from "./http.js";
import { piecesOf } from "./logs.js";

/** The files of a sandbox as they were at a moment. */
export type Snapshot = components["schemas"]["Snapshot"];
/** The state of a snapshot; there may be others than those of the contract. */
export type SnapshotState = components["schemas"]["SnapshotState"];

/** The files in which a snapshot differs. */
export type SnapshotDiff = components["schemas"]["SnapshotDiff"];

/** An image that the engine of the service has. */
export type StoredImage = components["schemas"]["StoredImage"];

/** Snapshots and sandboxes that are related. */
export type Lineage = components["schemas"]["Lineage"];

/** What to compare a snapshot with. */
export interface SnapshotDiffOptions extends CallOptions {
  /** The id of the snapshot to compare with; its image without it. */
  to?: string;
  /** How many files the list has at most, up to 10000; 1000 without it. */
  limit?: number;
}

/** What a snapshot to make is like. */
export interface SnapshotOptions extends CallOptions {
  /** For people. */
  name?: string;
  /** For people, too. */
  comment?: string;
  /** Tags. */
  metadata?: Record<string, string>;
  /**
   * `memory` keeps the processes too, which takes gVisor as the sandbox's runtime: a rollback of the
   * sandbox has them go on. Such a snapshot has every secret that they have.
   */
  kind?: "filesystem" | "memory";
  /** Seconds after which it is deleted by itself; without it, it is not. */
  ttl?: number;
  /** Milliseconds in which it must be Ready; 5 minutes without it. */
  timeout?: number;
}

/** Which snapshots to list. */
export interface SnapshotListOptions extends CallOptions {
  /** Those of one sandbox, which may be gone. */
  sandboxId?: string;
  /** Those in one of these states. */
  state?: SnapshotState | SnapshotState[];
  /** Those with this name. */
  name?: string;
  /** Those whose metadata holds all of these pairs. */
  metadata?: Record<string, string>;
}

/** How long one request waits for a state, in seconds; the service permits 60. */
const longestWait = 30;

/** The snapshots of the service that the key may read. {@link Sandbox.snapshot} makes one. */
export class Snapshots {
  constructor(private readonly api: Api<paths>) {}

  /** Snapshots, newest first. Pages are read as they are needed. */
  async *list(options: SnapshotListOptions = {}): AsyncGenerator<Snapshot, void, undefined> {
    const { sandboxId, state, name, metadata, signal } = options;
    const chosen = {
      ...(sandboxId === undefined ? {} : { sandboxId }),
      ...(name === undefined ? {} : { name }),
      ...(metadata ? { metadata: new URLSearchParams(metadata).toString() } : {}),
      ...(state === undefined ? {} : { state: typeof state === "string" ? [state] : state }),
    };
    for (let page = 1; ; page++) {
      const input = { query: { ...chosen, page, pageSize: 100 } };
      const { items, pagination } = await this.api.json("get", "/v1/snapshots", input, signal ? { signal } : {});
      yield* items;
      if (!pagination.hasNextPage) return;
    }
  }

  /** One snapshot. */
  get(id: string, options: CallOptions = {}): Promise<Snapshot> {
    return this.api.json("get", "/v1/snapshots/{snapshotId}", { path: { snapshotId: id } }, options);
  }

  /**
   * The files in which a snapshot differs from its image; with `to`, what has changed from it to that
   * snapshot. There are at most `limit`; `truncated` says whether there are more.
   */
  diff(id: string, options: SnapshotDiffOptions = {}): Promise<SnapshotDiff> {
    const { to, limit, signal } = options;
    const query = { ...(to === undefined ? {} : { to }), ...(limit === undefined ? {} : { limit }) };
    const input = { path: { snapshotId: id }, query };
    return this.api.json("get", "/v1/snapshots/{snapshotId}/diff", input, signal ? { signal } : {});
  }

  /** What {@link Snapshots.diff} is about, whole, as a tar archive that is the layer of an OCI image. */
  async *archive(id: string, options: { to?: string } & CallOptions = {}): AsyncGenerator<Uint8Array, void, undefined> {
    const { to, signal } = options;
    const input = { path: { snapshotId: id }, query: to === undefined ? {} : { to } };
    const call = { ...(signal ? { signal } : {}), accept: "application/x-tar" };
    yield* piecesOf(await this.api.open("get", "/v1/snapshots/{snapshotId}/diff", input, call));
  }

  /** Makes an image of a snapshot, under a name with a tag. It needs a key with the role admin. */
  export(id: string, name: string, options: CallOptions = {}): Promise<StoredImage> {
    const input = { path: { snapshotId: id }, body: { name } };
    return this.api.json("post", "/v1/snapshots/{snapshotId}/export", input, options);
  }

  /** Deletes a snapshot. Sandboxes that began with it, or were rolled back to it, keep their files. */
  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.api.json("delete", "/v1/snapshots/{snapshotId}", { path: { snapshotId: id } }, {
      ...options,
      idempotent: false, // once deleted, it is missing
    });
  }
}

/** Takes a snapshot of a sandbox and waits until it is Ready. */
export async function takeSnapshot(api: Api<paths>, sandboxId: string, options: SnapshotOptions): Promise<Snapshot> {
  const { signal, timeout = 300_000, ...body } = options;
  const call = { ...(signal ? { signal } : {}), longer: longestWait * 1_000 };
  const header = { Prefer: `wait=${longestWait}` };
  const input = { path: { sandboxId }, header, body };
  const first = { ...input, header: { ...header, ...newKey() } };
  let taken = await api.json("post", "/v1/sandboxes/{sandboxId}/snapshots", first, { ...call, idempotent: true });
  for (const end = Date.now() + timeout; taken.status.state === "Creating"; ) {
    if (Date.now() >= end) throw new SandboxError("timeout", `snapshot ${taken.id}: not Ready within ${timeout} ms`);
    taken = await api.json("get", "/v1/snapshots/{snapshotId}", { path: { snapshotId: taken.id }, header }, call);
  }
  const { state, reason = "", message = "" } = taken.status;
  if (state === "Ready") return taken;
  throw new SandboxError("failed", `snapshot ${taken.id}: is ${clean(state)} (${clean(reason)}): ${clean(message)}`, { code: clean(reason) });
}
