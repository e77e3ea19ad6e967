import { SandboxError } from "./errors.js";
import type { components } from "./gen/execd.js";
import { type Answered, type CallOptions, newKey, repeatedOnce } from "./http.js";
import type { Inside } from "./inside.js";
import { Kept, Output, type StreamEvent, bytesOf, decoder } from "./output.js";
import { resumable } from "./resume.js";
import { Stdin } from "./stdin.js";
import type { FileContent } from "./upload.js";

/** How a command is doing. */
export type CommandStatus = components["schemas"]["CommandStatus"];

/** How to run a command. */
export interface CommandOptions extends CallOptions {
  /** The directory to run in; without it the sandbox's working directory. */
  cwd?: string;
  /** Environment variables on top of the sandbox's. */
  envs?: Record<string, string>;
  /** The numeric user to run as. */
  uid?: number;
  /** The numeric group to run as. */
  gid?: number;
  /** Milliseconds after which the command is ended; without it never. */
  timeout?: number;
}

/** What a command reads while it runs. */
export interface InputOptions {
  /** What {@link Commands.run} gives it to read; without it its standard input is empty. */
  stdin?: FileContent;
}

/** How a command is started. */
export interface StartOptions extends CommandOptions {
  /** Whether {@link Command.stdin} writes its standard input; without it, that is empty. */
  stdin?: boolean;
}

/** What to do with the output of a command while it runs. */
export interface OutputOptions extends CallOptions {
  /** Called with each piece of standard output, as text and as the exact bytes. */
  onStdout?: (text: string, bytes: Uint8Array) => void;
  /** Called with each piece of standard error. */
  onStderr?: (text: string, bytes: Uint8Array) => void;
  /**
   * How many bytes of each output the result holds, 16 MiB without it. As many characters may the
   * notices have, and the JSON of all results of a cell. What is beyond goes to the callbacks
   * alone.
   */
  maxOutput?: number;
}

/** A piece of a command's life. */
export type CommandEvent =
  | {
      /** A piece of output: a line with its newline, or a part of one. */
      type: "stdout" | "stderr";
      text: string;
      /** The exact bytes. */
      bytes: Uint8Array;
    }
  | {
      /** A notice about the stream itself, such as that output beyond the daemon's limit is lost. */
      type: "status";
      text: string;
    }
  | {
      /** The command has ended; the last event. */
      type: "end";
      /** The exit code; null when the timeout ended the command. */
      exitCode: number | null;
      durationMs: number;
      /** Why it failed; absent when it did not. */
      error?: ExecutionError;
      /** Why it failed, where that is known: `OOM_KILLED`, the kernel ended it because memory ran out. */
      reason?: string;
    };

/** Why a command or a cell failed. */
export interface ExecutionError {
  /** Such as `CommandExecError`, `CommandTimeoutError`, or the exception of a cell. */
  name: string;
  value: string;
  traceback: string[];
}

/** What became of a command. */
export interface CommandResult {
  id: string;
  /** The exit code; null when the timeout ended the command. */
  exitCode: number | null;
  /** Standard output as text, with U+FFFD for what is no UTF-8. */
  stdout: string;
  stderr: string;
  /** Standard output as exact bytes. */
  stdoutBytes: Uint8Array;
  stderrBytes: Uint8Array;
  /** Whether more output or notices came than `maxOutput`. */
  truncated: boolean;
  /** Notices of the daemon, such as that output beyond its own limit is lost. */
  notices: string[];
  durationMs: number;
  error?: ExecutionError;
  /** Why it failed, where that is known: `OOM_KILLED`, the kernel ended it because memory ran out. */
  reason?: string;
}

/** How many bytes of an output are kept without another choice. */
export const defaultMaxOutput = 16 << 20;
/** What a notice counts beside its characters: about what the rest of its event has. */
const perNotice = 64;

/** Shell commands in one sandbox. */
export class Commands {
  constructor(private readonly inside: Inside) {}

  /** Interrupts a command whose caller does not have its id. */
  readonly #undo = async ({ response, close }: Answered, options: CallOptions): Promise<void> => {
    close();
    const id = response.headers.get("X-Command-ID");
    if (id !== null) await new Command(this.inside, id).interrupt(options);
  };

  /**
   * Runs a command with the sandbox's shell to its end. A failed command is a result, not an error.
   * When the signal aborts, a callback throws or `stdin` cannot be read, the command is interrupted.
   */
  async run(command: string, options: CommandOptions & OutputOptions & InputOptions = {}): Promise<CommandResult> {
    const { onStdout, onStderr, maxOutput, stdin, signal, ...request } = options;
    const call = signal ? { signal } : {};
    const body = { command, ...request, ...(stdin === undefined ? {} : { stdin: true }) };
    const first = await this.inside.api.open(
      "post", "/command", { body, header: newKey() }, { ...call, ...repeatedOnce, undo: this.#undo, accept: "text/event-stream" },
    );
    const id = first.response.headers.get("X-Command-ID");
    if (id === null) {
      first.close();
      throw new SandboxError("protocol", "POST /command: the answer has no X-Command-ID");
    }
    const running = new Command(this.inside, id);
    const over = new AbortController(); // ends what follows the command and what feeds it
    const stop = () => over.abort(signal?.reason);
    signal?.addEventListener("abort", stop, { once: true });
    over.signal.addEventListener("abort", () => first.close(), { once: true });
    if (signal?.aborted === true) stop(); // while the request was on its way
    const feeding = stdin === undefined ? undefined : running.stdin.feed(stdin, { signal: over.signal });
    feeding?.catch((error: unknown) => over.abort(error));
    try {
      const events = running.follow(() => Promise.resolve(first), { signal: over.signal });
      return await collect(id, events, options);
    } catch (error) {
      // The command would run on, and the caller does not have its id. The first error counts.
      if (!(error instanceof SandboxError) || over.signal.aborted) await running.interrupt().catch(() => undefined);
      throw error;
    } finally {
      signal?.removeEventListener("abort", stop);
      over.abort();
    }
  }

  /**
   * Starts a command and returns at once. It runs on when this client ends. When the signal aborts before that, the
   * command is interrupted.
   */
  async start(command: string, options: StartOptions = {}): Promise<Command> {
    const { signal, ...request } = options;
    const { id } = await this.inside.api.json(
      "post", "/command", { body: { command, background: true, ...request }, header: newKey() },
      { ...(signal ? { signal } : {}), ...repeatedOnce, undo: this.#undo },
    );
    return new Command(this.inside, id);
  }

  /**
   * The commands that run and the last that have ended, whoever started them, in the order of their
   * starts; `running` chooses one of the two. The daemon bounds the list and shortens long command lines.
   */
  list(options: { running?: boolean } & CallOptions = {}): Promise<CommandStatus[]> {
    const { running, ...call } = options;
    return this.inside.api.json("get", "/command", { query: running === undefined ? {} : { running } }, call);
  }

  /** A command that was started before, here or by another client; `not_found` when there is none. */
  async connect(id: string, options: CallOptions = {}): Promise<Command> {
    const { stdin } = await new Command(this.inside, id).status(options);
    return new Command(this.inside, id, stdin?.offset);
  }
}

/**
 * A command that was started. Iterating over it gives all of its events from the first one, and
 * follows it to its end; each iteration starts from the beginning.
 */
export class Command implements AsyncIterable<CommandEvent> {
  /** Its standard input, for a command that was started with `stdin`. */
  readonly stdin: Stdin;

  /** @param written - How many bytes of its standard input were written before. */
  constructor(
    private readonly inside: Inside,
    readonly id: string,
    written = 0,
  ) {
    this.stdin = new Stdin(inside, id, written);
  }

  [Symbol.asyncIterator](): AsyncGenerator<CommandEvent, void, undefined> {
    return this.events();
  }

  /** The events from the first one, followed to the end. A cut connection is resumed. */
  events(options: CallOptions = {}): AsyncGenerator<CommandEvent, void, undefined> {
    const input = { path: { id: this.id } };
    const start = () =>
      this.inside.api.open("get", "/command/{id}/stream", input, { ...options, accept: "text/event-stream" });
    return this.follow(start, options);
  }

  /** Waits for the end; the result has all output from the beginning. */
  wait(options: OutputOptions = {}): Promise<CommandResult> {
    return collect(this.id, this.events(options.signal ? { signal: options.signal } : {}), options);
  }

  /** How the command is doing. */
  status(options: CallOptions = {}): Promise<CommandStatus> {
    return this.inside.api.json("get", "/command/status/{id}", { path: { id: this.id } }, options);
  }

  /** Ends the command: SIGTERM to its process group, SIGKILL after two seconds. */
  async interrupt(options: CallOptions = {}): Promise<void> {
    await this.inside.api.json("delete", "/command", { query: { id: this.id } }, options);
  }

  /**
   * Standard output and standard error so far, combined, after the line with the index `cursor`; the
   * answer's cursor is for the next call. An unfinished last line comes again with the next one.
   * `dropped` is how many bytes of output are missing after it: those beyond the limit of the output,
   * or that could not be stored.
   */
  async logs(
    options: CallOptions & { cursor?: number } = {},
  ): Promise<{ text: string; cursor: number; dropped: number }> {
    const { cursor, ...call } = options;
    const input = { path: { id: this.id }, ...(cursor === undefined ? {} : { query: { cursor } }) };
    const { response, text } = await this.inside.api.text("get", "/command/{id}/logs", input, call);
    return {
      text,
      cursor: Number(response.headers.get("EXECD-COMMANDS-TAIL-CURSOR") ?? -1),
      dropped: Number(response.headers.get("EXECD-COMMANDS-DROPPED-BYTES") ?? 0),
    };
  }

  /** The events of a stream that is open already. */
  async *follow(start: () => Promise<Answered>, call: CallOptions): AsyncGenerator<CommandEvent, void, undefined> {
    const stream = resumable<StreamEvent>({
      name: `the stream of command ${this.id}`,
      start,
      resume: (after) =>
        this.inside.api.once(
          "get", "/command/{id}/stream",
          { path: { id: this.id }, ...(after === undefined ? {} : { header: { "Last-Event-ID": after } }) },
          { ...call, accept: "text/event-stream" },
        ),
      last: isLast,
      resumeFor: this.inside.resumeFor,
      signal: call.signal,
    });
    const decoders = { stdout: decoder(), stderr: decoder() }; // a character may span pieces
    for await (const event of stream) {
      switch (event.type) {
        case "stdout":
        case "stderr": {
          const bytes = bytesOf(event);
          yield { type: event.type, text: decoders[event.type].decode(bytes, { stream: true }), bytes };
          break;
        }
        case "status":
          yield { type: "status", text: event.text ?? "" };
          break;
        case "execution_complete":
        case "error":
          yield {
            type: "end",
            exitCode: event.exit_code ?? null,
            durationMs: event.execution_time ?? 0,
            ...errorOf(event),
            ...(event.reason === undefined ? {} : { reason: event.reason }),
          };
      }
    }
  }
}

/** Whether a stream of a command or a cell ends with an event. */
export function isLast(event: StreamEvent): boolean {
  return event.type === "execution_complete" || event.type === "error";
}

/** The error of a last event, to be spread. */
export function errorOf({ error }: StreamEvent): { error?: ExecutionError } {
  return error ? { error: { name: error.ename, value: error.evalue, traceback: error.traceback } } : {};
}

async function collect(
  id: string,
  events: AsyncIterable<CommandEvent>,
  options: OutputOptions,
): Promise<CommandResult> {
  const max = options.maxOutput ?? defaultMaxOutput;
  const kept = { stdout: new Output(max), stderr: new Output(max) };
  const on = { stdout: options.onStdout, stderr: options.onStderr };
  const notices = new Kept<string>(max);
  for await (const event of events) {
    if (event.type === "status") {
      notices.add(event.text, perNotice + event.text.length);
      continue;
    }
    if (event.type !== "end") {
      kept[event.type].add(event.bytes);
      on[event.type]?.(event.text, event.bytes);
      continue;
    }
    const stdoutBytes = kept.stdout.bytes();
    const stderrBytes = kept.stderr.bytes();
    return {
      id,
      exitCode: event.exitCode,
      stdout: decoder().decode(stdoutBytes),
      stderr: decoder().decode(stderrBytes),
      stdoutBytes,
      stderrBytes,
      truncated: [kept.stdout, kept.stderr, notices].some((all) => all.truncated),
      notices: notices.values,
      durationMs: event.durationMs,
      ...(event.error ? { error: event.error } : {}),
      ...(event.reason === undefined ? {} : { reason: event.reason }),
    };
  }
  throw new SandboxError("protocol", `the stream of command ${id} has no last event`);
}
