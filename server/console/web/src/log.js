// The log of a sandbox, as the service has it.
import { pause, request, whileVisible } from './api.js';

/**
 * readLog reads a log to its end, or follows it until the signal aborts while the sandbox is not over. A log has no ids to go on from, so
 * after a cut it is read again, and after an end too, which may be that of what is in between.
 *
 * @param {string} id of the sandbox
 * @param {{signal: AbortSignal, over: boolean, begin: () => void, add: (text: string) => void, fail: (error: Error) => void}} options
 *   begin is called before the first text, each time that the log is read from its beginning.
 */
export async function readLog(id, { signal, over, begin, add, fail }) {
  for (let wait = 500; ; wait = Math.min(wait * 2, 10_000)) {
    try {
      await whileVisible(signal, async (both) => {
        const response = await request(`/v1/sandboxes/${id}/logs?tail=2000&follow=${!over}`, { signal: both });
        begin();
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        for (let part = await reader.read(); !part.done; part = await reader.read()) {
          add(part.value);
          wait = 500;
        }
      });
      if (over) return;
    } catch (failure) {
      if (signal.aborted) return;
      if (failure.name !== 'HiddenError') fail(failure);
      if (failure.status >= 400 && failure.status < 500 && failure.status !== 429) return;
    }
    await pause(wait, signal);
  }
}
