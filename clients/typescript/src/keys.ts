import type { Api } from "./calls.js";
import type { components, paths } from "./gen/lifecycle.js";
import type { CallOptions } from "./http.js";

/** An API key of the service, without its secret. */
export type Key = components["schemas"]["Key"];
/** A key with its secret, which no other answer has. */
export type IssuedKey = components["schemas"]["IssuedKey"];

/** What a key to make is like. */
export interface CreateKeyOptions extends CallOptions {
  /** What it may do; `user` without it. */
  role?: Key["role"];
  /** When it ceases to be valid; without it it does not. */
  expiresAt?: Date;
  /** What it may ask for; without it, what the service's configuration allows. */
  limits?: NonNullable<Key["limits"]>;
  /** How often it may send requests; without it, as the service's configuration has it. */
  rateLimit?: NonNullable<Key["rateLimit"]>;
  /** Whether the name may be one that a key had before, whose sandboxes, volumes and images the new key gets. */
  takeOver?: boolean;
}

/** How a secret is replaced. */
export interface RotateOptions extends CallOptions {
  /** Seconds for which the secret before stays valid; 0 without it. */
  grace?: number;
  /** When the key ceases to be valid; without it that stays. */
  expiresAt?: Date;
}

/**
 * The API keys of the service. Every call needs a key with the role admin. Those of the service's configuration can be read only,
 * and a service on a cluster has no others: changes fail with the status 501 there.
 */
export class Keys {
  constructor(private readonly api: Api<paths>) {}

  /** The keys by name, expired ones too. Pages are read as they are needed. */
  async *list(options: CallOptions = {}): AsyncGenerator<Key, void, undefined> {
    for (let page = 1; ; page++) {
      const { items, pagination } = await this.api.json("get", "/v1/keys", { query: { page, pageSize: 100 } }, options);
      yield* items;
      if (!pagination.hasNextPage) return;
    }
  }

  /** One key. */
  get(name: string, options: CallOptions = {}): Promise<Key> {
    return this.api.json("get", "/v1/keys/{keyName}", { path: { keyName: name } }, options);
  }

  /**
   * Makes a key and returns it with its secret, which the service cannot show again. The request is not repeated when its answer
   * was lost: delete the key then.
   */
  create(name: string, options: CreateKeyOptions = {}): Promise<IssuedKey> {
    const { signal, role = "user", expiresAt, ...rest } = options;
    const body = { name, role, ...rest, ...(expiresAt ? { expiresAt: expiresAt.toISOString() } : {}) };
    return this.api.json("post", "/v1/keys", { body }, signal ? { signal } : {});
  }

  /** Gives a key a new secret, and returns it. */
  rotate(name: string, options: RotateOptions = {}): Promise<IssuedKey> {
    const { signal, grace, expiresAt } = options;
    const body = {
      ...(grace === undefined ? {} : { graceSeconds: grace }),
      ...(expiresAt ? { expiresAt: expiresAt.toISOString() } : {}),
    };
    const input = { path: { keyName: name }, body };
    return this.api.json("post", "/v1/keys/{keyName}/rotate", input, signal ? { signal } : {});
  }

  /** Removes a key: from then on it is refused, and what it began is cut off. */
  async delete(name: string, options: CallOptions = {}): Promise<void> {
    await this.api.json("delete", "/v1/keys/{keyName}", { path: { keyName: name } }, {
      ...options,
      idempotent: false, // once removed, it is missing
    });
  }
}
