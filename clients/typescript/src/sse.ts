import { SandboxError } from "./errors.js";

/** A server-sent event. */
export interface ServerSentEvent {
  /** The last id that the stream gave, for Last-Event-ID; empty when it gave none. */
  id: string;
  data: string;
}

/**
 * The longest event, in characters. A kernel's message of 64 MiB is the longest that the daemon
 * sends; its JSON may be longer.
 */
const maxEvent = 160 << 20;
/** What each piece of an event counts beside its characters: an empty one takes memory, too. */
const perPiece = 64;

/**
 * Splits a stream into events as the HTML standard describes them. Feed it the text as it arrives;
 * what is left at the end is no event.
 */
export class EventParser {
  #line: string[] = []; // pieces of the line that has not ended
  #data: string[] = [];
  #size = 0; // of both, in characters
  #id = "";
  #afterCR = false; // a line ended with CR: an LF right after it belongs to it

  /** The events that end within a piece of the stream. */
  *feed(text: string): Generator<ServerSentEvent> {
    let from = this.#afterCR && text.startsWith("\n") ? 1 : 0;
    if (text !== "") this.#afterCR = false;
    const ends = /\r\n?|\n/g;
    ends.lastIndex = from;
    for (let end = ends.exec(text); end !== null; end = ends.exec(text)) {
      this.#line.push(text.slice(from, end.index));
      from = ends.lastIndex;
      this.#afterCR = end[0] === "\r" && from === text.length;
      const line = this.#line.length === 1 ? (this.#line[0] ?? "") : this.#line.join("");
      this.#line = [];
      if (line !== "") {
        this.#field(line);
        continue;
      }
      if (this.#data.length > 0) yield { id: this.#id, data: this.#data.join("\n") };
      this.#data = [];
      this.#size = 0;
    }
    if (from === text.length) return;
    this.#line.push(text.slice(from));
    this.#grow(text.length - from);
  }

  #field(line: string): void {
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment
    const name = colon < 0 ? line : line.slice(0, colon);
    const start = line[colon + 1] === " " ? colon + 2 : colon + 1;
    const value = colon < 0 ? "" : line.slice(start);
    if (name === "data") {
      this.#data.push(value);
      this.#grow(value.length);
    } else if (name === "id" && !value.includes("\0")) {
      this.#id = value;
    }
  }

  #grow(by: number): void {
    this.#size += by + perPiece;
    if (this.#size > maxEvent) {
      throw new SandboxError("protocol", `event stream: an event is longer than ${maxEvent} characters`);
    }
  }
}
