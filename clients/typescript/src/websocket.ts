/** The constructor of WebSockets: a browser's, Deno's, that of Node.js from 22 on, or the package ws. */
export type WebSocketConstructor = new (url: string) => WebSocketLike;

/** What is used of a WebSocket. */
export interface WebSocketLike {
  binaryType: string;
  send(data: string | Uint8Array<ArrayBuffer>): void;
  close(): void;
  onopen: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
}
