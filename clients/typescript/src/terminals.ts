import type { Api } from "./calls.js";
import { SandboxError, clean } from "./errors.js";
import type { components } from "./gen/execd.js";
import type { paths as LifecyclePaths } from "./gen/lifecycle.js";
import { type CallOptions, newKey, repeatedOnce } from "./http.js";
import type { Inside } from "./inside.js";
import { Pauses } from "./pauses.js";
import { parseObject } from "./resume.js";
import type { WebSocketConstructor, WebSocketLike } from "./websocket.js";

/** How a terminal is doing. */
export type TerminalStatus = components["schemas"]["Terminal"];
/** A program to start on a terminal; `{}` is the image's shell. */
export type TerminalRequest = components["schemas"]["TerminalRequest"];
type TerminalNews = components["schemas"]["TerminalNews"];

/** What an attached terminal shows. */
export type TerminalEvent =
  | {
      /**
       * What was seen before is void: clear the screen. The next `bytes` bytes of output are the
       * past, at most 256 KiB. The first event, and again after a cut connection.
       */
      type: "replay";
      bytes: number;
    }
  | { type: "output"; bytes: Uint8Array }
  | {
      /** The program has ended; the last event. */
      type: "exit";
      /**
       * Its exit code, 128 and the number of the signal that ended it; null after its timeout, and
       * where it is not known.
       */
      exitCode: number | null;
    };

/** For how many seconds the address of a terminal is signed: until its WebSocket is open. */
const signedFor = 30;
/** How many times in a row a WebSocket may be refused by a service that answers other requests. */
const maxRefusals = 5;
/** How many bytes of output wait for a consumer; with more, the past is replayed later. */
const maxQueue = 8 << 20;

/** What terminals need of their client. */
export interface Outside {
  lifecycle: Api<LifecyclePaths>;
  webSocket: () => Promise<WebSocketConstructor | undefined>;
}

/** Interactive programs in one sandbox. */
export class Terminals {
  constructor(
    private readonly inside: Inside,
    private readonly outside: Outside,
    private readonly sandboxId: string,
  ) {}

  /** Starts a program on a new terminal. It runs on when this client ends. */
  async create(request: TerminalRequest = {}, options: CallOptions = {}): Promise<Terminal> {
    const { id } = await this.inside.api.json("post", "/pty", { body: request, header: newKey() }, {
      ...options,
      ...repeatedOnce,
    });
    return new Terminal(this.inside, this.outside, this.sandboxId, id);
  }

  /** A terminal that was started before; `not_found` when there is none. */
  async connect(id: string, options: CallOptions = {}): Promise<Terminal> {
    const terminal = new Terminal(this.inside, this.outside, this.sandboxId, id);
    await terminal.status(options);
    return terminal;
  }

  /** The terminals that run and the last that have ended, oldest first. */
  list(options: CallOptions = {}): Promise<TerminalStatus[]> {
    return this.inside.api.json("get", "/pty", {}, options);
  }
}

/** A terminal, which has any number of viewers. */
export class Terminal {
  constructor(
    private readonly inside: Inside,
    private readonly outside: Outside,
    private readonly sandboxId: string,
    readonly id: string,
  ) {}

  /** How the terminal is doing. */
  status(options: CallOptions = {}): Promise<TerminalStatus> {
    return this.inside.api.json("get", "/pty/{id}", { path: { id: this.id } }, options);
  }

  /** Hangs the terminal up: SIGHUP, and two seconds later SIGKILL. */
  async delete(options: CallOptions = {}): Promise<void> {
    await this.inside.api.json("delete", "/pty/{id}", { path: { id: this.id } }, options);
  }

  /** Watches the terminal and types into it. A cut connection is made again. */
  async attach(options: CallOptions = {}): Promise<Attachment> {
    const webSocket = await this.outside.webSocket();
    if (webSocket === undefined) {
      throw new SandboxError(
        "unsupported",
        "this runtime has no WebSocket: give one to the client, new Client({ webSocket: WebSocket })",
      );
    }
    const connect = async () => new webSocket(await this.#address());
    const attachment = new Attachment(connect, () => this.status(), this.inside.resumeFor, options.signal);
    await attachment.ready;
    return attachment;
  }

  /**
   * A WebSocket has no headers in browsers, so its URL is signed for a moment. The signature holds
   * on the service itself, wherever the endpoint is.
   */
  async #address(): Promise<string> {
    const { signature } = await this.outside.lifecycle.json("get", "/v1/sandboxes/{sandboxId}/endpoints/{port}", {
      path: { sandboxId: this.sandboxId, port: 44772 },
      query: { expires: String(signedFor) },
    });
    if (signature === undefined) throw new SandboxError("protocol", "the signed endpoint has no signature");
    const base = new URL(this.inside.api.http.base, globalThis.location?.href).href.replace(/^http/, "ws");
    return `${base}/pty/${encodeURIComponent(this.id)}/attach?sandbox-signature=${encodeURIComponent(signature)}`;
  }
}

/**
 * A viewer of a terminal. Iterate over it for what the terminal shows; the loop ends after `exit`
 * and after {@link Attachment.detach}.
 */
export class Attachment implements AsyncIterable<TerminalEvent>, AsyncDisposable {
  /** Resolves when the terminal is attached for the first time. */
  readonly ready: Promise<void>;
  #socket: WebSocketLike | undefined; // undefined while there is no open one
  #connecting: Promise<void>;
  #queue: TerminalEvent[] = [];
  #queued = 0; // bytes
  #over = false;
  #failure: unknown;
  #refusal = "the runtime does not say why";
  #wake: () => void = () => undefined;
  readonly #stop: () => void;

  /** Use {@link Terminal.attach}. */
  constructor(
    private readonly connect: () => Promise<WebSocketLike>,
    private readonly check: () => Promise<unknown>,
    private readonly resumeFor: number,
    private readonly signal: AbortSignal | undefined,
  ) {
    this.#stop = () => this.#end(this.signal?.reason);
    signal?.addEventListener("abort", this.#stop, { once: true });
    this.#connecting = this.ready = this.#open();
    this.ready.catch(() => undefined); // attach and the loop throw it
  }

  /** Types. While the connection is made again, it waits; a connection that is cut loses what is under way. */
  async write(input: string | Uint8Array<ArrayBuffer>): Promise<void> {
    const bytes = typeof input === "string" ? new TextEncoder().encode(input) : input;
    (await this.#opened()).send(bytes);
  }

  /** Gives the terminal another size, for all of its viewers. */
  async resize(rows: number, cols: number): Promise<void> {
    (await this.#opened()).send(JSON.stringify({ type: "resize", rows, cols }));
  }

  /** Leaves the terminal, which goes on. */
  detach(): void {
    this.#end(undefined);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.detach();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<TerminalEvent, void, undefined> {
    for (;;) {
      const event = this.#queue.shift();
      if (event !== undefined) {
        if (event.type === "output") this.#queued -= event.bytes.length;
        yield event;
      } else if (this.#failure !== undefined) {
        throw this.#failure;
      } else if (this.#over) {
        return;
      } else {
        await new Promise<void>((resolve) => (this.#wake = resolve));
      }
    }
  }

  async #opened(): Promise<WebSocketLike> {
    while (this.#socket === undefined) {
      if (this.#over) throw this.#failure ?? new SandboxError("connection", "the terminal is detached or has ended");
      await this.#connecting;
    }
    return this.#socket;
  }

  /** Opens a WebSocket, again and again until the limit, or fails. */
  async #open(): Promise<void> {
    const pauses = new Pauses(this.resumeFor);
    try {
      for (let refusals = 0; await pauses.next(undefined, this.signal); refusals++) {
        if (refusals === maxRefusals) {
          throw new SandboxError("connection", `the WebSocket of the terminal is refused: ${this.#refusal}`);
        }
        if (this.#over || (await this.#try())) return;
        await this.check(); // a WebSocket does not say why it was refused
      }
      throw new SandboxError("stream", `the terminal was not attached within ${this.resumeFor} ms: ${this.#refusal}`);
    } catch (error) {
      this.#end(error);
      throw error;
    }
  }

  async #try(): Promise<boolean> {
    const socket = await this.connect();
    socket.binaryType = "arraybuffer";
    return new Promise((resolve) => {
      socket.onopen = () => {
        if (this.#over) socket.close();
        else this.#socket = socket;
        resolve(true);
      };
      // What follows is a close. Browsers do not say why.
      socket.onerror = ({ message }: { message?: string }) => (this.#refusal = clean(message ?? this.#refusal));
      socket.onmessage = ({ data }: { data: unknown }) => this.#receive(socket, data);
      socket.onclose = ({ code, reason }: { code: number; reason: string }) => {
        if (code === 1008) this.#end(new SandboxError("invalid", `terminal: ${clean(reason)}`));
        this.#replace(socket);
        resolve(false);
      };
    });
  }

  /** Opens another WebSocket instead of one, of which nothing is taken any more. */
  #replace(socket: WebSocketLike): void {
    if (this.#over || this.#socket !== socket) return;
    this.#socket = undefined;
    socket.close();
    this.#connecting = this.#open();
    this.#connecting.catch(() => undefined); // the loop throws it
  }

  #receive(socket: WebSocketLike, data: unknown): void {
    if (this.#over || this.#socket !== socket) return;
    if (typeof data !== "string") {
      const bytes = new Uint8Array(data as ArrayBuffer);
      this.#queued += bytes.length;
      this.#push({ type: "output", bytes });
      if (this.#queued <= maxQueue) return;
      // Attached again, the viewer gets a replay in the place of what it did not take.
      this.#queue = [];
      this.#queued = 0;
      this.#replace(socket);
      return;
    }
    let news: TerminalNews;
    try {
      news = parseObject<TerminalNews>(data, "terminal");
    } catch (error) {
      this.#end(error);
      return;
    }
    if (news.type === "replay") this.#push({ type: "replay", bytes: news.bytes ?? 0 });
    if (news.type !== "exit") return;
    this.#push({ type: "exit", exitCode: news.exit_code ?? null });
    this.#end(undefined);
  }

  #push(event: TerminalEvent): void {
    this.#queue.push(event);
    this.#wake();
  }

  #end(failure: unknown): void {
    if (this.#over) return;
    this.#over = true;
    this.#failure = failure;
    this.signal?.removeEventListener("abort", this.#stop);
    this.#socket?.close();
    this.#socket = undefined;
    this.#wake();
  }
}
