import { type ExecutionError, type OutputOptions, defaultMaxOutput, errorOf, isLast } from "./commands.js";
import { SandboxError } from "./errors.js";
import type { components } from "./gen/execd.js";
import { type Answered, type CallOptions, newKey, repeatedOnce } from "./http.js";
import { Kept, Output, type StreamEvent, bytesOf, decoder, fromBase64 } from "./output.js";
import type { Inside } from "./inside.js";
import { numbered } from "./resume.js";

/** A kernel that keeps its variables. */
export type CodeContext = components["schemas"]["CodeContext"];

/** How to run a cell. */
export interface CodeOptions extends OutputOptions {
  /** The language; python without it. */
  language?: string;
  /** The context to run in, or its id; without it the default one of the language, which all clients share. */
  context?: CodeContext | string;
  /** Runs in a fresh kernel for this cell alone; `context` must then be left out. */
  stateless?: boolean;
  /** Called with each result as it arrives. */
  onResult?: (result: Result) => void;
}

/** A value or something to show, in one or several MIME types. */
export class Result {
  /** @param data - By MIME type: text as it is, images in base64, JSON types as JSON. */
  constructor(readonly data: Readonly<Record<string, unknown>>) {}

  get text(): string | undefined {
    return this.#string("text/plain");
  }
  get html(): string | undefined {
    return this.#string("text/html");
  }
  get markdown(): string | undefined {
    return this.#string("text/markdown");
  }
  get latex(): string | undefined {
    return this.#string("text/latex");
  }
  get svg(): string | undefined {
    return this.#string("image/svg+xml");
  }
  get json(): unknown {
    return this.data["application/json"];
  }
  /** The bytes of the image. */
  get png(): Uint8Array | undefined {
    return this.#bytes("image/png");
  }
  /** The bytes of the image. */
  get jpeg(): Uint8Array | undefined {
    return this.#bytes("image/jpeg");
  }

  #string(type: string): string | undefined {
    const value = this.data[type];
    return typeof value === "string" ? value : undefined;
  }

  #bytes(type: string): Uint8Array | undefined {
    const value = this.#string(type);
    return value === undefined ? undefined : fromBase64(value.replace(/\s/g, ""));
  }
}

/** What became of a cell. */
export interface Execution {
  id: string;
  results: Result[];
  stdout: string;
  stderr: string;
  /** Whether more output, results or notices came than `maxOutput`. */
  truncated: boolean;
  /** Notices of the daemon, such as that output beyond its own limit is lost. */
  notices: string[];
  /** The number of the cell in its kernel; absent when it never began. */
  count?: number;
  durationMs: number;
  /** What the cell raised, or why it ended early; absent when it ended well. */
  error?: ExecutionError;
  /** Why it failed, where that is known: `OOM_KILLED`, its interpreter was ended because memory ran out. */
  reason?: string;
}

/** Cells of code in one sandbox. */
export class Code {
  readonly contexts: Contexts;

  constructor(private readonly inside: Inside) {
    this.contexts = new Contexts(inside);
  }

  /**
   * Runs a cell to its end. What it raises is in the result. When the signal aborts or a callback
   * throws, the cell is interrupted.
   */
  async run(code: string, options: CodeOptions = {}): Promise<Execution> {
    const { signal } = options;
    const call = { ...(signal ? { signal } : {}), accept: "text/event-stream" };
    const body = { code, context: choice(options) };
    const undo = async ({ response, close }: Answered, options: CallOptions) => {
      close();
      const id = response.headers.get("X-Execution-ID");
      if (id !== null) await this.interrupt(id, options);
    };
    const first = await this.inside.api.open("post", "/code", { body, header: newKey() }, {
      ...call, ...repeatedOnce, undo,
    });
    const id = first.response.headers.get("X-Execution-ID");
    if (id === null) {
      first.close();
      throw new SandboxError("protocol", "POST /code: the answer has no X-Execution-ID");
    }
    const events = numbered<StreamEvent>({
      name: `the stream of execution ${id}`,
      start: () => Promise.resolve(first),
      resume: (after) =>
        this.inside.api.once(
          "get", "/code/executions/{id}/stream",
          { path: { id }, ...(after === undefined ? {} : { header: { "Last-Event-ID": after } }) },
          call,
        ),
      last: isLast,
      resumeFor: this.inside.resumeFor,
      signal,
    });
    try {
      return await collect(id, events, options);
    } catch (error) {
      // The cell would run on, and the caller does not have its id. The first error counts.
      if (!(error instanceof SandboxError)) await this.interrupt(id).catch(() => undefined);
      throw error;
    }
  }

  /** Interrupts the running cell of a context, or the execution with this id. */
  async interrupt(id: string, options: CallOptions = {}): Promise<void> {
    await this.inside.api.json("delete", "/code", { query: { id } }, options);
  }
}

/** Kernels that keep their variables. */
export class Contexts {
  constructor(private readonly inside: Inside) {}

  /** Starts a kernel and returns when it is ready. */
  create(language: string, options: CallOptions = {}): Promise<CodeContext> {
    return this.inside.api.json("post", "/code/context", { body: { language }, header: newKey() }, {
      ...options,
      ...repeatedOnce,
    });
  }

  /** The contexts of a language. */
  list(language: string, options: CallOptions = {}): Promise<CodeContext[]> {
    return this.inside.api.json("get", "/code/contexts", { query: { language } }, options);
  }

  get(id: string, options: CallOptions = {}): Promise<CodeContext> {
    return this.inside.api.json("get", "/code/contexts/{context_id}", { path: { context_id: id } }, options);
  }

  /** Ends a kernel; a cell that runs in it ends with an error. */
  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.inside.api.json("delete", "/code/contexts/{context_id}", { path: { context_id: id } }, {
      ...options,
      idempotent: false, // once deleted, it is missing
    });
  }

  /** Ends all kernels of a language. */
  async deleteAll(language: string, options: CallOptions = {}): Promise<void> {
    await this.inside.api.json("delete", "/code/contexts", { query: { language } }, options);
  }
}

function choice({ context, language, stateless }: CodeOptions): components["schemas"]["ContextChoice"] {
  if (context !== undefined && stateless === true) {
    throw new SandboxError("invalid", "stateless: must not be given with a context");
  }
  if (context !== undefined) return { id: typeof context === "string" ? context : context.id };
  return { ...(language === undefined ? {} : { language }), ...(stateless === true ? {} : { default: true }) };
}

async function collect(
  id: string,
  events: AsyncIterable<{ data: StreamEvent; length: number }>,
  options: CodeOptions,
): Promise<Execution> {
  const max = options.maxOutput ?? defaultMaxOutput;
  const kept = { stdout: new Output(max), stderr: new Output(max) };
  const decoders = { stdout: decoder(), stderr: decoder() };
  const on = { stdout: options.onStdout, stderr: options.onStderr };
  const results = new Kept<Result>(max);
  const notices = new Kept<string>(max);
  for await (const { data: event, length } of events) {
    switch (event.type) {
      case "stdout":
      case "stderr": {
        const bytes = bytesOf(event);
        kept[event.type].add(bytes);
        on[event.type]?.(decoders[event.type].decode(bytes, { stream: true }), bytes);
        break;
      }
      case "result": {
        const result = new Result(event.results ?? {});
        results.add(result, length);
        options.onResult?.(result);
        break;
      }
      case "status":
        notices.add(event.text ?? "", length);
        break;
      case "execution_complete":
      case "error":
        return {
          id,
          results: results.values,
          stdout: decoder().decode(kept.stdout.bytes()),
          stderr: decoder().decode(kept.stderr.bytes()),
          truncated: [kept.stdout, kept.stderr, results, notices].some((all) => all.truncated),
          notices: notices.values,
          ...(event.execution_count === undefined ? {} : { count: event.execution_count }),
          durationMs: event.execution_time ?? 0,
          ...errorOf(event),
          ...(event.reason === undefined ? {} : { reason: event.reason }),
        };
    }
  }
  throw new SandboxError("protocol", `the stream of execution ${id} has no last event`);
}
