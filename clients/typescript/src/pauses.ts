/** Resolves after some milliseconds; rejects with the signal's reason when it aborts before. */
export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

const longestPause = 2_000;

/** The pauses between attempts: none before the first repetition, then growing ones up to 2 s. */
export class Pauses {
  #repetitions = 0;
  #since = 0;

  /** @param limit - For how many milliseconds without progress attempts are repeated. */
  constructor(private readonly limit: number) {}

  /** Called whenever something arrived: the next pauses are short again. */
  progress(): void {
    this.#repetitions = 0;
  }

  /**
   * Waits before the next attempt. It returns false instead when the limit has passed, or will pass
   * within retryAfter, in seconds.
   */
  async next(retryAfter: number | undefined, signal?: AbortSignal): Promise<boolean> {
    if (this.#repetitions === 0) this.#since = Date.now();
    const growing = this.#repetitions === 0 ? 0 : 50 * 2 ** Math.min(this.#repetitions, 10);
    this.#repetitions++;
    // Several clients that lost one service do not all come back in the same moment.
    const own = Math.min(growing, longestPause) * (0.5 + Math.random() / 2);
    const pause = Math.max(own, (retryAfter ?? 0) * 1_000);
    if (Date.now() + pause - this.#since > this.limit) return false;
    if (pause > 0) await sleep(pause, signal);
    signal?.throwIfAborted();
    return true;
  }
}
