import type { Command } from "./commands.js";
import { SandboxError, isKind } from "./errors.js";
import type { FileInfo } from "./files.js";
import { type CallOptions } from "./http.js";
import type { Sandbox } from "./sandbox.js";
import { piecesOf, streamOf } from "./upload.js";

/** What every call of the framework may be given. */
interface Abortable {
  abortSignal?: AbortSignal | undefined;
}

/** A call on a path: absolute, or relative to the session's directory. */
interface AtPath extends Abortable {
  path: string;
}

/** How to run a command. */
interface ProcessOptions extends Abortable {
  command: string;
  workingDirectory?: string | undefined;
  env?: Record<string, string> | undefined;
}

/** A command that runs: `SandboxProcess` of the AI SDK. */
export interface HarnessProcess {
  readonly stdout: ReadableStream<Uint8Array>;
  readonly stderr: ReadableStream<Uint8Array>;
  /** Resolves when the command has ended; rejects with the reason of its signal when that has aborted. */
  wait(): Promise<{ exitCode: number }>;
  /** Ends the command. Succeeds when it has ended already. */
  kill(): Promise<void>;
}

/** A command whose standard input can be written: `WritableSandboxProcess` of the AI SDK. */
export interface WritableHarnessProcess extends HarnessProcess {
  readonly stdin: WritableStream<Uint8Array>;
}

/** Files and commands of a sandbox, and nothing that ends it or changes its network: `SandboxSession` of the AI SDK. */
export interface RestrictedHarnessSession {
  readonly description: string;
  readFile(options: AtPath): Promise<ReadableStream<Uint8Array> | null>;
  readBinaryFile(options: AtPath): Promise<Uint8Array | null>;
  readTextFile(options: AtPath & {
    encoding?: string | undefined; startLine?: number | undefined; endLine?: number | undefined;
  }): Promise<string | null>;
  writeFile(options: AtPath & { content: ReadableStream<Uint8Array> }): Promise<void>;
  writeBinaryFile(options: AtPath & { content: Uint8Array }): Promise<void>;
  writeTextFile(options: AtPath & { content: string; encoding?: string | undefined }): Promise<void>;
  stat(options: AtPath): Promise<{ type: "file" | "directory" | "other"; size: number } | null>;
  listDirectory(options: AtPath): Promise<{ name: string; type: FileInfo["type"] }[] | null>;
  deleteFile(options: AtPath): Promise<boolean>;
  spawn(options: ProcessOptions & { stdin: true }): Promise<WritableHarnessProcess>;
  spawn(options: ProcessOptions & { stdin?: false | undefined }): Promise<HarnessProcess>;
  spawn(options: ProcessOptions & { stdin?: boolean | undefined }): Promise<HarnessProcess | WritableHarnessProcess>;
  run(options: ProcessOptions): Promise<{ exitCode: number; stdout: string; stderr: string }>;
}

/** How many symbolic links `stat` follows, as the kernel does. */
const maxLinks = 40;

/** The files and commands of a sandbox, whose relative paths are below a directory. */
export function restrictedSession(
  sandbox: Sandbox,
  directory: string,
  unsupported: (message: string) => Error,
): RestrictedHarnessSession {
  const { files } = sandbox;
  const at = (path: string): string => (path.startsWith("/") ? path : `${directory === "/" ? "" : directory}/${path}`);
  const request = ({ command, workingDirectory = directory, env }: ProcessOptions) =>
    [command, { cwd: at(workingDirectory), ...(env === undefined ? {} : { envs: env }) }] as const;
  const readBinaryFile = ({ path, abortSignal }: AtPath) => ifThere(files.read(at(path), callOf(abortSignal)));

  const spawn = async (options: ProcessOptions & { stdin?: boolean | undefined }): Promise<never> => {
    const [text, how] = request(options);
    const stdin = options.stdin === true;
    const command = await sandbox.commands.start(text, { ...how, stdin, ...callOf(options.abortSignal) });
    const started = processOf(command, options.abortSignal);
    return (stdin ? { ...started, stdin: inputOf(command) } : started) as never; // one of two types, by `stdin`
  };

  return {
    description: `A Linux container (sandbox ${sandbox.id}). Commands run in ${directory}, below which relative paths are.`,
    async readFile({ path, abortSignal }) {
      const pieces = piecesOf(files.readStream(at(path), callOf(abortSignal)));
      const first = await ifThere(pieces.next());
      return first === null ? null : streamOf(after(first, pieces));
    },
    readBinaryFile,
    async readTextFile({ encoding = "utf-8", startLine, endLine, ...options }) {
      const decoder = new TextDecoder(encoding); // throws for an encoding that it does not know
      const bytes = await readBinaryFile(options);
      return bytes === null ? null : linesOf(decoder.decode(bytes), startLine, endLine);
    },
    writeFile: ({ path, content, abortSignal }) => files.write(at(path), content, callOf(abortSignal)),
    writeBinaryFile: ({ path, content, abortSignal }) => files.write(at(path), content, callOf(abortSignal)),
    async writeTextFile({ path, content, encoding = "utf-8", abortSignal }) {
      if (!/^utf-?8$/i.test(encoding)) throw unsupported(`writeTextFile: the encoding ${encoding} is not supported, utf-8 is`);
      await files.write(at(path), content, callOf(abortSignal));
    },
    async stat({ path, abortSignal }) {
      let place = at(path);
      for (let links = 0; links < maxLinks; links++) {
        const info = await ifThere(files.info(place, callOf(abortSignal)));
        if (info === null) return null;
        if (info.type !== "symlink") return { type: info.type, size: info.size };
        const target = info.link_target ?? "";
        place = target.startsWith("/") ? target : `${place.replace(/[^/]*\/*$/, "")}${target}`;
      }
      throw new SandboxError("invalid", `stat ${path}: too many symbolic links`);
    },
    async listDirectory({ path, abortSignal }) {
      const entries = await ifThere(files.list(at(path), callOf(abortSignal)));
      return entries?.map((entry) => ({ name: entry.path.slice(entry.path.lastIndexOf("/") + 1), type: entry.type })) ?? null;
    },
    deleteFile: async ({ path, abortSignal }) =>
      (await ifThere(files.delete(at(path), callOf(abortSignal)).then(() => true))) ?? false,
    spawn,
    async run(options) {
      const [text, how] = request(options);
      const ended = await sandbox.commands.run(text, { ...how, ...callOf(options.abortSignal) });
      // The framework has no other place for these.
      const notes = [...ended.notices];
      if (ended.truncated) notes.push("the rest of the output is left out");
      if (ended.reason === "OOM_KILLED") notes.push("the command was ended because memory ran out");
      const stderr = ended.stderr + notes.map((note) => `\n[${note}]`).join("");
      return { exitCode: ended.exitCode ?? 1, stdout: ended.stdout, stderr };
    },
  };
}

/** The options of a call that a signal of the framework may end. */
export const callOf = (signal: AbortSignal | undefined): CallOptions => (signal === undefined ? {} : { signal });

/** What a request on a file answers, or null when the file is not there. */
async function ifThere<T>(request: Promise<T>): Promise<T | null> {
  try {
    return await request;
  } catch (error) {
    if (isKind(error, "not_found") && error.code === "FILE_NOT_FOUND") return null;
    throw error;
  }
}

/** What an iterator yields after its first result, with that. */
async function* after<T>(first: IteratorResult<T, void>, rest: AsyncGenerator<T, void, undefined>): AsyncGenerator<T, void, undefined> {
  if (first.done === true) return;
  yield first.value;
  yield* rest;
}

/** Lines of a text, counted from 1, with the line ends that it has. */
function linesOf(text: string, first = 1, last = Infinity): string {
  if (first <= 1 && last === Infinity) return text;
  const end = ["\r\n", "\n", "\r"].find((each) => text.includes(each)) ?? "\n";
  return text.split(end).slice(Math.max(1, first) - 1, Math.max(0, last)).join(end);
}

/** A command as the framework has it. Its output is asked for when it is read, so a slow reader keeps none of it in memory. */
function processOf(command: Command, signal: AbortSignal | undefined): HarnessProcess {
  const kill = () => command.interrupt();
  const abort = () => void kill().catch(() => undefined); // whoever waits is given the reason
  signal?.addEventListener("abort", abort, { once: true });
  if (signal?.aborted === true) abort(); // while the request was on its way
  let ended: ReturnType<Command["wait"]> | undefined;
  return {
    stdout: outputOf(command, "stdout"),
    stderr: outputOf(command, "stderr"),
    async wait() {
      const { exitCode } = await (ended ??= command.wait({ maxOutput: 0 }).finally(() => signal?.removeEventListener("abort", abort)));
      signal?.throwIfAborted();
      return { exitCode: exitCode ?? 1 };
    },
    kill,
  };
}

/** One of the outputs of a command, from its beginning. Output that the daemon could not keep is an error. */
function outputOf(command: Command, type: "stdout" | "stderr"): ReadableStream<Uint8Array> {
  const over = new AbortController();
  const events = command.events({ signal: over.signal });
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        for (;;) {
          const { value } = await events.next();
          if (value === undefined || value.type === "end") return controller.close();
          if (value.type === "status") throw new SandboxError("stream", `the output of command ${command.id}: ${value.text}`);
          if (value.type === type) return controller.enqueue(value.bytes);
        }
      },
      cancel: () => over.abort(),
    },
    { highWaterMark: 0 },
  );
}

/** The standard input of a command as a stream. */
function inputOf({ stdin }: Command): WritableStream<Uint8Array> {
  return new WritableStream<Uint8Array>({
    write: (bytes) => stdin.write(bytes),
    close: () => stdin.end(),
    abort: () => stdin.end(),
  });
}
