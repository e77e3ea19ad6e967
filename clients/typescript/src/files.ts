import { SandboxError, isKind } from "./errors.js";
import { type ByteRange, download } from "./download.js";
import type { components } from "./gen/execd.js";
import { type CallOptions, join } from "./http.js";
import type { Inside } from "./inside.js";
import { type Permission, permissionOf } from "./mode.js";
import { resumable } from "./resume.js";
import { type FileContent, type FileToWrite, streamOf, uploadForm } from "./upload.js";

/** The facts of a file or directory. */
export type FileInfo = components["schemas"]["FileInfo"];
/** What happened to a watched path. */
export type FileEvent = components["schemas"]["FileEvent"];
/** A text to look for and the text to put in its place. */
export type Replacement = components["schemas"]["Replacement"];

/** How to read a file into memory. */
export interface ReadOptions extends CallOptions, ByteRange {
  /** The most bytes to read, 256 MiB without it; a longer file is an error. */
  maxBytes?: number;
}

/** The files of one sandbox. Paths are absolute, relative to its working directory, or begin with `~/`. */
export class Files {
  constructor(private readonly inside: Inside) {}

  /** The bytes of a file. */
  async read(path: string, options: ReadOptions = {}): Promise<Uint8Array<ArrayBuffer>> {
    const { maxBytes = 256 << 20, ...range } = options;
    const pieces: Uint8Array[] = [];
    let length = 0;
    for await (const piece of download(this.inside.api, path, range, this.inside.resumeFor)) {
      length += piece.length;
      if (length > maxBytes) {
        throw new SandboxError("protocol", `read ${path}: is longer than ${maxBytes} bytes; use readStream`);
      }
      pieces.push(piece);
    }
    return join(pieces, length);
  }

  /** The text of a file, with U+FFFD for what is no UTF-8. */
  async readText(path: string, options: ReadOptions = {}): Promise<string> {
    return new TextDecoder().decode(await this.read(path, options));
  }

  /** The bytes of a file as they arrive. It is opened when the first piece is asked for. */
  readStream(path: string, options: CallOptions & ByteRange = {}): ReadableStream<Uint8Array<ArrayBuffer>> {
    return streamOf(download(this.inside.api, path, options, this.inside.resumeFor));
  }

  /**
   * Writes a file. It is at its path when all of it is on disk, or not at all; missing directories
   * are made.
   */
  async write(path: string, content: FileContent, options: Permission & CallOptions = {}): Promise<void> {
    const { signal, ...permission } = options;
    await this.writeAll([{ path, content, ...permission }], signal ? { signal } : {});
  }

  /** Writes several files in one request. */
  async writeAll(files: FileToWrite[], options: CallOptions = {}): Promise<void> {
    const { body, type } = uploadForm(files);
    const { signal } = options;
    const answered = await this.inside.api.http.open({
      method: "POST",
      path: "/files/upload",
      headers: { "Content-Type": type },
      body,
      idempotent: true, // the same files at the same paths
      longer: Infinity, // as long as it takes to send
      ...(signal ? { signal } : {}),
    });
    await answered.response.body?.cancel();
    answered.close();
  }

  /** The facts of a file or directory; a symbolic link is not followed. */
  async info(path: string, options: CallOptions = {}): Promise<FileInfo> {
    const infos = await this.inside.api.json("get", "/files/info", { query: { path: [path] } }, options);
    const info = infos[path];
    if (info === undefined) throw new SandboxError("protocol", `GET /files/info: the answer lacks ${path}`);
    return info;
  }

  /** Whether there is something at a path. */
  async exists(path: string, options: CallOptions = {}): Promise<boolean> {
    try {
      await this.info(path, options);
      return true;
    } catch (error) {
      if (isKind(error, "not_found") && error.code === "FILE_NOT_FOUND") return false;
      throw error;
    }
  }

  /** What a directory holds, sorted by path, down to some levels; 1 without a choice. */
  list(path: string, options: CallOptions & { depth?: number } = {}): Promise<FileInfo[]> {
    const { depth, ...call } = options;
    const query = { path, ...(depth === undefined ? {} : { depth }) };
    return this.inside.api.json("get", "/directories/list", { query }, call);
  }

  /**
   * The files below a directory that match a glob, sorted by path. A pattern with a slash is matched
   * against the path relative to the directory, one without against the base name.
   */
  search(path: string, pattern: string, options: CallOptions = {}): Promise<FileInfo[]> {
    return this.inside.api.json("get", "/files/search", { query: { path, pattern } }, options);
  }

  /** Replaces every occurrence of a text in each of several files. */
  async replace(replacements: Record<string, Replacement>, options: CallOptions = {}): Promise<void> {
    await this.inside.api.json("post", "/files/replace", { body: replacements }, options);
  }

  /** Moves or renames a file or directory; nothing is ever overwritten. */
  async move(from: string, to: string, options: CallOptions = {}): Promise<void> {
    await this.inside.api.json("post", "/files/mv", { body: [{ src: from, dest: to }] }, options);
  }

  /** Removes files; with `recursive`, directories with everything in them instead. */
  async delete(paths: string | string[], options: CallOptions & { recursive?: boolean } = {}): Promise<void> {
    const { recursive = false, ...call } = options;
    const query = { path: typeof paths === "string" ? [paths] : paths };
    await this.inside.api.json("delete", recursive ? "/directories" : "/files", { query }, {
      ...call,
      idempotent: false, // once removed, they are missing
    });
  }

  /** Makes a directory and its missing parents; one that is there only gets the permissions. */
  async makeDirectory(path: string, options: Permission & CallOptions = {}): Promise<void> {
    const { signal, ...permission } = options;
    await this.inside.api.json(
      "post", "/directories", { body: { [path]: permissionOf(permission) } }, { ...(signal ? { signal } : {}), idempotent: true },
    );
  }

  /** Changes owner, group and mode; what is left out stays. */
  async setPermissions(permissions: Record<string, Permission>, options: CallOptions = {}): Promise<void> {
    const body = Object.fromEntries(Object.entries(permissions).map(([path, each]) => [path, permissionOf(each)]));
    await this.inside.api.json("post", "/files/permissions", { body }, {
      ...options,
      idempotent: true,
    });
  }

  /**
   * What happens to a file or directory, from the `ready` event on, until the path itself is removed
   * or renamed. Where events may be missing - the client was slow, or a cut connection was made again
   * - an `overflow` event comes: read the files again. Pings are left out.
   */
  async *watch(
    path: string,
    options: CallOptions & { recursive?: boolean } = {},
  ): AsyncGenerator<FileEvent, void, undefined> {
    const { recursive, signal } = options;
    const input = { query: { path, ...(recursive === undefined ? {} : { recursive }) } };
    const call = { ...(signal ? { signal } : {}), accept: "text/event-stream" };
    let watched = "";
    const events = resumable<FileEvent>({
      name: `the watch of ${path}`,
      start: () => this.inside.api.open("get", "/files/watch", input, call),
      resume: () => this.inside.api.once("get", "/files/watch", input, call),
      last: ({ type, path }) =>
        type === "error" || (path === watched && (type === "remove" || type === "rename")),
      resumeFor: this.inside.resumeFor,
      signal,
    });
    for await (const event of events) {
      if (event.type === "ping") continue;
      yield event;
      if (event.type !== "ready") continue;
      // The watch stands again after a cut; what happened in between is not known.
      if (watched !== "") yield { ...event, type: "overflow" };
      watched = event.path ?? "";
    }
  }
}
