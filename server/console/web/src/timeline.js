// What happened to a sandbox, as a time line.
import { useEffect, useState } from 'preact/hooks';
import { follow } from './api.js';
import { clock, Empty, html, moment, Problem, sleep, State } from './ui.js';

const limit = 500; // events that are shown

export function Timeline({ sandbox: { id } }) {
  const [list, setList] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    const control = new AbortController();
    let all = [];
    follow(`/v1/sandboxes/${id}/events`, {
      signal: control.signal,
      onLive(live) { if (live) setList((old) => old ?? []); },
      onEvent(event, key) {
        if (event.type !== 'ping') setList(all = [{ ...event, key }, ...all].slice(0, limit));
        return event.type === 'forgotten';
      },
    }).catch((failure) => failure.name === 'AbortError' || setError(failure));
    return () => control.abort();
  }, [id]);
  if (error) return html`<${Problem} error=${error} />`;
  if (!list?.length) return html`<${Empty}>${list ? 'No events are kept.' : 'Loading…'}<//>`;
  return html`<ol class="timeline" aria-label="Events, newest first">${list.map((event) => html`<li key=${event.key} data-type=${event.type}>
    <time datetime=${event.timestamp} title=${moment(event.timestamp)}>${clock(event.timestamp)}</time>
    <div>${describe(event)}</div></li>`)}</ol>`;
}

function describe(event) {
  switch (event.type) {
    case 'state':
      return html`${event.from && html`<${State} state=${event.from} /> <span aria-label="to">→</span> `}<${State} state=${event.to} /> <code>${event.reason}</code> <span class="dim">${event.message}</span>`;
    case 'stage':
      return html`Stage <b>${event.stage}</b> <span class="dim">${milliseconds(event.durationMs)}, ${milliseconds(event.elapsedMs)} since accepted</span>`;
    case 'progress':
      return html`${event.message}`;
    case 'renewed':
      return html`Renewed until ${moment(event.expiresAt)}`;
    case 'metadata':
      return html`Metadata ${Object.entries(event.metadata ?? {}).map(([key, value]) => html`<code>${key}=${value}</code> `)}
        ${event.metadataRemoved?.map((key) => html`<del><code>${key}</code></del> `)}`;
    case 'networkPolicy':
      return html`Network policy: default <b>${event.networkPolicy?.defaultAction ?? 'allow'}</b>, ${event.networkPolicy?.egress?.length ?? 0} rules${event.networkPolicy?.dryRun ? ', dry run' : ''}`;
    case 'lifecycle':
      return html`Sleep: ${sleep(event.lifecycle)}`;
    case 'snapshot':
      return html`Snapshot <code>${event.snapshotId.slice(0, 8)}</code> <${State} state=${event.snapshotState} /> ${event.reason && html`<code>${event.reason}</code>`} <span class="dim">${event.message}</span>`;
    case 'reset':
      return 'Earlier events are forgotten';
    case 'forgotten':
      return 'The record of the sandbox is gone';
    default:
      return html`${event.type} <span class="dim">${event.message}</span>`;
  }
}

/** milliseconds writes a duration. */
export const milliseconds = (n) => (n === undefined ? '–' : n < 1000 ? `${n.toFixed(n < 10 ? 1 : 0)} ms` : `${(n / 1000).toFixed(2)} s`);
