// What the entrypoint printed, live.
import { useEffect, useRef, useState } from 'preact/hooks';
import { readLog } from './log.js';
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
    const begin = () => {
      shown = '';
      setError(null);
      add('');
    };
    readLog(id, { signal, over, begin, add, fail: setError }).catch(() => {});
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
