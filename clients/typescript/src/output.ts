import type { components } from "./gen/execd.js";
import { join } from "./http.js";

/** An event of a command or a cell, as the contract has it. */
export type StreamEvent = components["schemas"]["StreamEvent"];

const encoder = new TextEncoder();

/**
 * The exact bytes that an output event stands for. An event is a line without its newline, except
 * that an empty line is the newline itself and that a partial line has none. Bytes that are no UTF-8
 * come in `raw`.
 */
export function bytesOf(event: StreamEvent): Uint8Array<ArrayBuffer> {
  const line = event.raw ? fromBase64(event.raw) : encoder.encode(event.text ?? "");
  if (event.partial === true || (line.length === 1 && line[0] === 10)) return line;
  return join([line, encoder.encode("\n")], line.length + 1);
}

/** The bytes that base64 stands for. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Keeps the beginning of an output. */
export class Output {
  readonly #pieces: Uint8Array[] = [];
  #length = 0;
  /** Whether more came than is kept. */
  truncated = false;

  /** @param max - How many bytes are kept. */
  constructor(private readonly max: number) {}

  add(piece: Uint8Array): void {
    const kept = piece.subarray(0, this.max - this.#length);
    if (kept.length < piece.length) this.truncated = true;
    if (kept.length === 0) return;
    this.#pieces.push(kept);
    this.#length += kept.length;
  }

  /** What is kept. */
  bytes(): Uint8Array<ArrayBuffer> {
    return join(this.#pieces, this.#length);
  }
}

/** Keeps the first of some values, as long as they are no longer than that together. */
export class Kept<T> {
  readonly values: T[] = [];
  /** Whether more came than is kept. */
  truncated = false;

  /** @param room - How long all of them may be. */
  constructor(private room: number) {}

  add(value: T, length: number): void {
    this.room -= length;
    if (this.room >= 0) this.values.push(value);
    else this.truncated = true;
  }
}

/** A decoder to text, with U+FFFD for what is no UTF-8. */
export function decoder(): InstanceType<typeof TextDecoder> {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}
