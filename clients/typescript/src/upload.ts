import type { components } from "./gen/execd.js";
import { randomName } from "./http.js";
import { type WithMode, permissionOf } from "./mode.js";

/** What a file is made of. */
export type FileContent =
  | string
  | Uint8Array
  | ArrayBuffer
  | Blob
  | ReadableStream<Uint8Array>
  | AsyncIterable<Uint8Array>;

/** A file to write: where, with which owner, group and mode, and its content. */
export type FileToWrite = WithMode<components["schemas"]["UploadMetadata"]> & { content: FileContent };

/**
 * The form that uploads files: for each its metadata, and then its bytes. It is a Blob, which can be
 * sent again, unless a content is a stream.
 */
export function uploadForm(files: FileToWrite[]): { body: Blob | ReadableStream<Uint8Array>; type: string } {
  const boundary = `sandbox-${randomName()}`;
  const parts: FileContent[] = [];
  for (const { content, ...metadata } of files) {
    parts.push(
      `--${boundary}\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n${JSON.stringify(permissionOf(metadata))}\r\n`,
      `--${boundary}\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n\r\n`,
      content,
      "\r\n",
    );
  }
  parts.push(`--${boundary}--\r\n`);
  const type = `multipart/form-data; boundary=${boundary}`;
  return { body: parts.every(isWhole) ? new Blob(parts as BlobPart[]) : streamOf(chunks(parts)), type };
}

type Whole = string | Uint8Array | ArrayBuffer | Blob;

function isWhole(content: FileContent): content is Whole {
  return (
    typeof content === "string" ||
    content instanceof Uint8Array ||
    content instanceof ArrayBuffer ||
    content instanceof Blob
  );
}


async function* chunks(parts: FileContent[]): AsyncGenerator<Uint8Array> {
  const encoder = new TextEncoder();
  for (const part of parts) {
    if (typeof part === "string") yield encoder.encode(part);
    else if (part instanceof Uint8Array) yield part;
    else if (part instanceof ArrayBuffer) yield new Uint8Array(part);
    else if (part instanceof Blob) yield* piecesOf(part.stream());
    else if (part instanceof ReadableStream) yield* piecesOf(part);
    else yield* part;
  }
}

/** The bytes of a content, piece by piece. */
export function piecesOfAll(content: FileContent): AsyncGenerator<Uint8Array> {
  return chunks([content]);
}

/** The pieces of a stream; not every browser can iterate over one. */
export async function* piecesOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => undefined); // the stream has failed, which read has thrown
  }
}

/** A stream of what a generator yields; cancelling it ends the generator. */
export function streamOf<T extends Uint8Array>(pieces: AsyncGenerator<T, void, undefined>): ReadableStream<T> {
  return new ReadableStream<T>({
    async pull(controller) {
      const { done, value } = await pieces.next();
      if (done === true) controller.close();
      else controller.enqueue(value);
    },
    async cancel() {
      await pieces.return();
    },
  });
}

