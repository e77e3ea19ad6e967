// One sandbox.
import { useEffect, useState } from 'preact/hooks';
import { ActionButtons } from './actions.js';
import { Activity } from './activity.js';
import { ByCode } from './bycode.js';
import { Charts } from './charts.js';
import { Checkpoints } from './checkpoints.js';
import { Files } from './files.js';
import { Logs } from './logs.js';
import { Network } from './network.js';
import { Notebook } from './notebook.js';
import { Ports } from './ports.js';
import { ended } from './state.js';
import { mayChange, read, useStore } from './store.js';
import { Terminals } from './terminals.js';
import { Timeline } from './timeline.js';
import { Copy, Empty, html, Left, moment, nameOf, Problem, sleep, State, Tabs } from './ui.js';

// Those with use run something in the sandbox, or reach into it, which a viewer may not.
const tabs = [
  { id: 'summary', label: 'Summary', page: Summary },
  { id: 'activity', label: 'Activity', page: Activity },
  { id: 'terminal', label: 'Terminal', page: Terminals, use: true },
  { id: 'files', label: 'Files', page: Files, use: true },
  { id: 'checkpoints', label: 'Checkpoints', page: Checkpoints },
  { id: 'notebook', label: 'Notebook', page: Notebook, use: true },
  { id: 'logs', label: 'Logs', page: Logs },
  { id: 'events', label: 'Events', page: Timeline },
  { id: 'network', label: 'Network', page: Network },
  { id: 'ports', label: 'Ports', page: Ports, use: true },
];

export function Detail({ id, tab, part }) {
  const { sandboxes, loaded } = useStore();
  const [missing, setMissing] = useState(null);
  const sandbox = sandboxes.get(id);
  useEffect(() => {
    if (loaded && !sandbox) read(id).then(setMissing);
  }, [loaded, !sandbox]);
  useEffect(() => { if (sandbox) document.title = `${nameOf(sandbox)} · Sandboxes`; }, [sandbox]);
  if (!sandbox) return missing ? html`<${Problem} error=${missing} /><p><a href="#/">All sandboxes</a></p>` : html`<${Empty}>Loading…<//>`;
  const allowed = tabs.filter((each) => !each.use || mayChange());
  const current = allowed.find((each) => each.id === tab) ?? allowed[0];
  const over = ended(sandbox.status.state);
  return html`<div class="head">
      <h1>${nameOf(sandbox)}</h1>
      <${State} state=${sandbox.status.state} />
      <span class="dim">${over ? html`ended ${moment(sandbox.status.lastTransitionAt)}` : html`ends in <${Left} until=${sandbox.expiresAt} />`}</span>
      <span class="space"></span>
      ${mayChange() && html`<div class="tools"><${ActionButtons} sandbox=${sandbox} /></div>`}
    </div>
    ${sandbox.status.state === 'Failed' && html`<div class="problem"><p><code>${sandbox.status.reason}</code></p><pre>${sandbox.status.message}</pre></div>`}
    <${Tabs} label="Parts of the sandbox" tabs=${allowed} current=${current.id} onSelect=${(to) => { location.hash = `#/sandboxes/${id}/${to}`; }} />
    <section role="tabpanel" id=${`panel-${current.id}`} aria-labelledby=${`tab-${current.id}`} class="panel">
      <${current.page} key=${current.id} sandbox=${sandbox} part=${part} />
      <${ByCode} of=${current.id} values=${{ id }} />
    </section>`;
}

function Summary({ sandbox }) {
  const { id, image, status, createdAt, expiresAt, entrypoint, metadata, owner, runtimeClass, lifecycle } = sandbox;
  const tags = Object.entries(metadata ?? {});
  return html`${mayChange() && html`<${Charts} sandbox=${sandbox} />`}
    <dl class="facts">
      <dt>Id</dt><dd><code>${id}</code> <${Copy} text=${id} label="Copy the id" /></dd>
      <dt>Image</dt><dd><code>${image.uri}</code></dd>
      ${owner && html`<dt>Owner</dt><dd>${owner}</dd>`}
      ${runtimeClass && html`<dt>Runtime class</dt><dd>${runtimeClass}</dd>`}
      <dt>Entrypoint</dt><dd><code>${JSON.stringify(entrypoint)}</code></dd>
      <dt>State</dt><dd>${status.state} since ${moment(status.lastTransitionAt)}</dd>
      <dt>Reason</dt><dd><code>${status.reason}</code> ${status.state !== 'Failed' && status.message}</dd>
      <dt>Created</dt><dd>${moment(createdAt)}</dd>
      <dt>Ends</dt><dd>${moment(expiresAt)}</dd>
      ${lifecycle && html`<dt>Sleep</dt><dd>${sleep(lifecycle)}</dd>`}
      ${tags.map(([key, value]) => html`<dt class="tag">${key}</dt><dd>${value}</dd>`)}
    </dl>
    ${sandbox.extensions && html`<h2>Extensions</h2><pre class="box" tabindex="0">${JSON.stringify(sandbox.extensions, null, 2)}</pre>`}`;
}
