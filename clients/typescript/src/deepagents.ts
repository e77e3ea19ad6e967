import { isKind } from "./errors.js";
import { defaultMaxOutput } from "./commands.js";
import type { Sandbox } from "./sandbox.js";

/** How a {@link deepagentsBackend} runs commands. */
export interface DeepagentsOptions {
  /** The directory of commands; without it the sandbox's working directory. */
  cwd?: string;
  /** Milliseconds after which a command is ended; without it never. */
  timeout?: number;
  /** How many characters of a command's output are kept, 16 Mi without it. */
  maxOutput?: number;
}

/** What became of a command: `ExecuteResponse` of deepagents. */
interface Executed {
  output: string;
  exitCode: number | null;
  truncated: boolean;
}

/** Why a file could not be read or written: `FileOperationError` of deepagents. */
type FileError = "file_not_found" | "permission_denied" | "is_directory" | "invalid_path";

/**
 * A backend of [deepagents](https://www.npmjs.com/package/deepagents) whose commands and files are
 * those of a sandbox. This module imports nothing of the framework: it is given the class
 * `BaseSandbox` of the version that is used, which makes every other operation of these three.
 *
 * ```ts
 * import { BaseSandbox, createDeepAgent } from "deepagents";
 * import { deepagentsBackend } from "@sandbox.internal/sdk";
 *
 * const agent = createDeepAgent({ model, backend: deepagentsBackend(BaseSandbox, sandbox) });
 * ```
 *
 * The sandbox is the caller's: the backend neither creates nor deletes it.
 */
export function deepagentsBackend<B extends object>(
  base: abstract new () => B,
  sandbox: Sandbox,
  options: DeepagentsOptions = {},
): B {
  const { maxOutput = defaultMaxOutput, ...call } = options;

  /** Makes a request on a file, and returns the framework's word for its failure, null for none. */
  const attempt = async (path: string, request: () => Promise<void>): Promise<FileError | null> => {
    try {
      await request();
      return null;
    } catch (error) {
      if (isKind(error, "not_found") && error.code === "FILE_NOT_FOUND") return "file_not_found";
      if (isKind(error, "forbidden")) return "permission_denied";
      if (!isKind(error, "invalid", "conflict")) throw error; // not about this path
      return (await isDirectory(path)) ? "is_directory" : "invalid_path";
    }
  };
  const isDirectory = async (path: string): Promise<boolean> => {
    try {
      return (await sandbox.files.info(path)).type === "directory";
    } catch (error) {
      if (isKind(error, "not_found", "invalid", "forbidden")) return false;
      throw error;
    }
  };

  class Backend extends (base as unknown as new () => object) {
    readonly id = sandbox.id;

    /** Runs a command with the sandbox's shell; the output has both streams, as they arrived. */
    async execute(command: string): Promise<Executed> {
      let output = "";
      let truncated = false;
      const add = (text: string): void => {
        truncated ||= text.length > maxOutput - output.length;
        output += text.slice(0, maxOutput - output.length);
      };
      const ended = await sandbox.commands.run(command, { ...call, onStdout: add, onStderr: add, maxOutput: 0 });
      const why = ended.reason === "OOM_KILLED" ? "memory ran out" : ended.exitCode === null ? "its time was over" : undefined;
      if (why !== undefined) output += `\n[The command was ended because ${why}.]`;
      // Output that the daemon could not keep.
      return { output, exitCode: ended.exitCode, truncated: truncated || ended.notices.length > 0 };
    }

    /** Writes files, whole or not at all; missing directories are made. */
    async uploadFiles(files: [string, Uint8Array][]): Promise<{ path: string; error: FileError | null }[]> {
      const written: { path: string; error: FileError | null }[] = [];
      for (const [path, content] of files) {
        const error = await attempt(path, () => sandbox.files.write(path, content));
        written.push({ path, error });
      }
      return written;
    }

    /** Reads files, each at most 256 MiB. */
    async downloadFiles(
      paths: string[],
    ): Promise<{ path: string; content: Uint8Array | null; error: FileError | null }[]> {
      const read: { path: string; content: Uint8Array | null; error: FileError | null }[] = [];
      for (const path of paths) {
        let content: Uint8Array | null = null;
        const error = await attempt(path, async () => {
          content = await sandbox.files.read(path);
        });
        read.push({ path, content, error });
      }
      return read;
    }
  }
  return new Backend() as unknown as B;
}
