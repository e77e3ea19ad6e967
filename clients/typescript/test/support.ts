import assert from "node:assert/strict";
import { type AddressInfo, type Socket, connect, createServer } from "node:net";

import { Client, type ClientOptions } from "@sandbox.internal/sdk";

/** A variable that the test which started this one has set. */
export function variable(name: string): string {
  const value = process.env[name];
  assert.ok(value, `$${name} is not set`);
  return value;
}

/** The images of the sandboxes: a shell alone, and one with a Python kernel. */
export const busybox = variable("SANDBOX_IMAGE");
export const python = variable("SANDBOX_CODE_IMAGE");

/** The client that the environment describes. */
export function newClient(options: ClientOptions = {}): Client {
  return new Client(options);
}

/** Waits until something holds. */
export async function eventually(what: string, holds: () => Promise<boolean> | boolean): Promise<void> {
  for (const end = Date.now() + 60_000; !(await holds()); ) {
    assert.ok(Date.now() < end, `not within a minute: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20)); // between two looks
  }
}

/**
 * A TCP proxy in front of the service that resets connections after a random number of bytes of each
 * request or answer. What a POST starts is known from the header of its answer on, so this one is let through.
 */
export class CuttingProxy implements AsyncDisposable {
  /** How many connections were reset. */
  cuts = 0;
  /** The most bytes of an answer that pass; Infinity cuts none. */
  longest = Infinity;
  /** The most bytes of a request that pass; Infinity cuts none. */
  longestRequest = Infinity;
  /** How many connections are reset at most. */
  most = Infinity;
  readonly #server = createServer((client) => this.#serve(client));
  readonly #open = new Set<Socket>();

  private constructor(
    /** Where new connections go. */
    public target: URL,
  ) {}

  static async start(target = variable("SANDBOX_URL")): Promise<CuttingProxy> {
    const proxy = new CuttingProxy(new URL(target));
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Resets every connection. */
  cutAll(): void {
    for (const socket of this.#open) this.#cut(socket);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#open) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #cut(client: Socket): void {
    this.cuts++;
    client.resetAndDestroy();
  }

  #serve(client: Socket): void {
    const service = connect(Number(this.target.port), this.target.hostname);
    this.#open.add(client);
    let allowed = Infinity; // bytes of the request that may still pass
    let budget = Infinity; // bytes of the answer that may still pass
    let header: string | undefined; // of the answer to a POST, until it has ended
    client.on("data", (data: Buffer) => {
      const method = /^[A-Z]+(?= \/)/.exec(data.toString("latin1", 0, 16))?.[0];
      if (method !== undefined) budget = method === "GET" ? this.#random(this.longest) : Infinity;
      if (method !== undefined) header = method === "POST" ? "" : undefined;
      if (method !== undefined) allowed = this.#random(this.longestRequest);
      if (data.length <= allowed) {
        allowed -= data.length;
        return void service.write(data);
      }
      client.pause();
      service.write(data.subarray(0, allowed), () => this.#cut(client));
    });
    service.on("data", (data: Buffer) => {
      if (header !== undefined) {
        header += data.toString("latin1");
        const end = header.indexOf("\r\n\r\n");
        if (end < 0) return void client.write(data);
        // The whole of a stream may come together with its header.
        budget = end + 4 - (header.length - data.length) + this.#random(this.longest);
        header = undefined;
      }
      if (data.length <= budget) {
        budget -= data.length;
        return void client.write(data);
      }
      service.pause();
      client.write(data.subarray(0, budget), () => this.#cut(client));
    });
    client.on("close", () => {
      this.#open.delete(client);
      service.destroy();
    });
    service.on("close", () => client.end());
    for (const socket of [client, service]) socket.on("error", () => undefined); // a close follows
  }

  #random(longest: number): number {
    return longest === Infinity || this.cuts >= this.most ? Infinity : Math.floor(Math.random() * longest);
  }
}
