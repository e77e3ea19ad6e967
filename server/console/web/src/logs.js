// What the entrypoint printed, live.
import { useEffect, useRef, useState } from 'preact/hooks';
import { pause, request, whileVisible } from './api.js';
import { Empty, html, plain, Problem } from './ui.js';

const limit = 512 * 1024; // characters that are shown

export function Logs({ sandbox: { id, status: { state } } }) {
  const [text, setText] = useState(null);
  const [error, setError] = useState(null);
  const [stick, setStick] = useState(true);
  const [round, again] = useState(0);
  const box = useRef();
  const over = state === 'Terminated' || state === 'Failed';
  useEffect(() => {
    const control = new AbortController();
    const { signal } = control;
    let shown = '';
    const add = (more) => {
      shown = (shown + more).slice(-limit);
      setText(shown);
    };
    // A log has no ids to go on from, so after a cut it is read again.
    const read = async () => {
      for (let wait = 500; ; wait = Math.min(wait * 2, 10_000)) {
        try {
          await whileVisible(signal, async (both) => {
            const response = await request(`/v1/sandboxes/${id}/logs?tail=2000&follow=${!over}`, { signal: both });
            shown = '';
            setError(null);
            add('');
            const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
            for (let part = await reader.read(); !part.done; part = await reader.read()) {
              add(part.value);
              wait = 500;
            }
          });
          return;
        } catch (failure) {
          if (signal.aborted) return;
          if (failure.name !== 'HiddenError') setError(failure);
          if (failure.status >= 400 && failure.status < 500 && failure.status !== 429) return;
        }
        await pause(wait, signal);
      }
    };
    read().catch(() => {});
    return () => control.abort();
  }, [id, over, round]);
  useEffect(() => { if (stick && box.current) box.current.scrollTop = box.current.scrollHeight; }, [text, stick]);
  const scrolled = ({ target }) => setStick(target.scrollHeight - target.scrollTop - target.clientHeight < 8);
  return html`<div class="row">
      <label><input type="checkbox" checked=${stick} onChange=${(event) => setStick(event.target.checked)} /> Keep the end in view</label>
      <span class="dim">The last 2000 lines, and what follows</span>
    </div>
    <${Problem} error=${error} onRetry=${() => again(round + 1)} />
    ${text === null ? !error && html`<${Empty}>${state === 'Pending' ? 'The sandbox is Pending: there is no output yet.' : 'Loading…'}<//>` :
    text === '' ? html`<${Empty}>The entrypoint has printed nothing.<//>` :
    html`<pre class="box log" tabindex="0" aria-label="Log" ref=${box} onScroll=${scrolled}>${plain(text)}</pre>`}`;
}
