// What clients have done in a sandbox, and do: live, with the output of what is chosen.
import { useEffect, useRef, useState } from 'preact/hooks';
import { call, daemon, follow } from './api.js';
import { append, Output } from './output.js';
import { unusable } from './state.js';
import { mayChange } from './store.js';
import { clock, Empty, html, moment, Problem, useAction, useTick } from './ui.js';

const most = 1000; // entries that are shown, as many as the daemon keeps

/** keep puts an entry, new or changed, into a list of which the newest is the first. */
export function keep(list, entry) {
  const at = list.findIndex((each) => each.id <= entry.id);
  if (at < 0) return [...list, entry].slice(0, most);
  return [...list.slice(0, at), entry, ...list.slice(list[at].id === entry.id ? at + 1 : at)].slice(0, most);
}

export function Activity({ sandbox }) {
  const { id } = sandbox;
  const reason = unusable(sandbox);
  const [list, setList] = useState(null);
  const [error, setError] = useState(null);
  const [chosen, choose] = useState(null);
  useEffect(() => {
    if (reason) return undefined;
    const control = new AbortController();
    let shown = [];
    setError(null);
    follow(`/v1/sandboxes/${id}/activity/watch`, {
      signal: control.signal,
      onLive(live) { if (live) setList((old) => old ?? []); },
      onEvent(entry) { setList(shown = keep(shown, entry)); },
    }).catch((failure) => failure.name === 'AbortError' || setError(failure));
    return () => control.abort();
  }, [id, Boolean(reason)]);
  return html`<${Problem} error=${error} />
    ${reason && html`<p class="note" role="status">${reason}</p>`}
    ${!list?.length && !reason && !error && html`<${Empty}>${list ? 'Nothing was done yet.' : 'Loading…'}<//>`}
    ${Boolean(list?.length) && html`<ol class="activity" aria-label="Activity, newest first">${list.map((entry) => html`<${Entry} key=${entry.id}
      id=${id} entry=${entry} usable=${!reason} open=${entry.id === chosen} onToggle=${() => choose(entry.id === chosen ? null : entry.id)} />`)}</ol>
    <p class="dim">The daemon in the sandbox has recorded this. It is no audit log.</p>`}`;
}

const streams = { command: (of) => `/command/${of}/stream`, code: (of) => `/code/executions/${of}/stream` };

function Entry({ id, entry, usable, open, onToggle }) {
  const { kind, operation, text, truncated, key, client, state, started } = entry;
  return html`<li data-state=${state} data-kind=${kind}>
    <button type="button" class="quiet" aria-expanded=${String(open)} onClick=${onToggle}>
      <time datetime=${started} title=${moment(started)}>${clock(started)}</time>
      <code>${text.trim().split('\n')[0]}${truncated || text.trim().includes('\n') ? '…' : ''}</code>
      <span class="by">${kind} by <b>${key || 'no key'}</b> through ${client || 'an unnamed client'}</span>
      <span class="how" role="status"><${How} entry=${entry} /></span>
    </button>
    ${open && html`<div class="inside">
      ${text.trim().includes('\n') && html`<pre class="box" tabindex="0">${text}</pre>`}
      ${entry.error && html`<p class="dim">${entry.error}</p>`}
      ${mayChange() && usable && streams[kind] && html`<${Shown} id=${id} entry=${entry} />`}
      ${mayChange() && usable && kind === 'terminal' && state === 'running' && html`<p><a class="button" href=${`#/sandboxes/${id}/terminal/${operation}`}>Open the terminal</a></p>`}
      ${!streams[kind] && kind !== 'terminal' && !entry.error && html`<p class="dim">Nothing more is recorded of it.</p>`}
    </div>`}
  </li>`;
}

/** How shows how long an operation has taken, and how it ended. */
function How({ entry: { state, exit, started, ended } }) {
  if (state === 'running') return html`running <${Since} at=${started} />`;
  const took = new Date(ended) - new Date(started);
  return html`${state === 'succeeded' ? 'ok' : exit === null ? 'failed' : `exit ${exit}`} after ${took < 1000 ? `${took} ms` : `${(took / 1000).toFixed(1)} s`}`;
}

function Since({ at }) {
  useTick();
  return html`${Math.max(0, Math.round((Date.now() - new Date(at)) / 1000))} s`;
}

/** Shown is the output of a command or a cell, which goes on while it runs. */
function Shown({ id, entry: { kind, operation, state } }) {
  const cell = useRef({ outputs: [], size: 0 });
  const [outputs, setOutputs] = useState([]);
  const [ended, setEnded] = useState(false);
  const [error, setError] = useState(null);
  const [busy, run, refused] = useAction();
  useEffect(() => {
    const control = new AbortController();
    cell.current = { outputs: [], size: 0 };
    const onEvent = (event) => {
      switch (event.type) {
        case 'stdout':
        case 'stderr':
          append(cell.current, { kind: event.type, text: event.text === '\n' && !event.partial ? '\n' : event.text + (event.partial ? '' : '\n') });
          break;
        case 'result': append(cell.current, { kind: 'result', results: event.results }); break;
        case 'status': append(cell.current, { kind: 'stderr', text: `${event.text}\n` }); break;
        case 'error':
          if (kind === 'code') append(cell.current, { kind: 'error', text: event.error.traceback.join('\n') || `${event.error.ename}: ${event.error.evalue}` });
          break;
        default:
      }
      setOutputs(cell.current.outputs);
      const last = event.type === 'execution_complete' || event.type === 'error';
      if (last) setEnded(true);
      return last;
    };
    follow(daemon(id, streams[kind](operation)), { signal: control.signal, onEvent })
      .catch((failure) => failure.name === 'AbortError' || setError(failure));
    return () => control.abort();
  }, [id, operation]);
  const interrupt = () => run(() => call('DELETE', daemon(id, `/${kind}?id=${operation}`)));
  if (error?.status === 404) return html`<p class="dim">Its output is not kept any more.</p>`;
  return html`<${Problem} error=${error ?? refused} />
    ${outputs.length ? html`<${Output} outputs=${outputs} />` : html`<p class="dim">${ended ? 'It printed nothing.' : 'No output yet.'}</p>`}
    ${state === 'running' && !ended && html`<p><button type="button" disabled=${busy} onClick=${interrupt}>Interrupt</button></p>`}`;
}
