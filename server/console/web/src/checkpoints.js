// The snapshots of a sandbox: taking one, going back to one, and other sandboxes with the same files.
import { useEffect, useRef, useState } from 'preact/hooks';
import { LifeChoice } from './actions.js';
import { ApiError, call, pause } from './api.js';
import { called, Changes } from './changes.js';
import { mayChange, useStore } from './store.js';
import { milliseconds } from './timeline.js';
import { tree } from './tree.js';
import { Ago, bytes, Confirm, Empty, html, Left, Modal, nameOf, Problem, State, useAction } from './ui.js';

const limit = 500; // snapshots that are shown
const settling = 200; // ms in which further events lead to one look
const interval = 2000; // ms between two looks while a snapshot is made or removed
const lanes = 6; // that are drawn; what branches off further is in the last one
const held = { headers: { Prefer: 'wait=60' } }; // the answer comes when the outcome is known

const unsettled = ({ status: { state } }) => state === 'Creating' || state === 'Deleting';
const usable = ({ status: { state } }) => state === 'Ready';

/** originOf reads a snapshot of another sandbox, undefined for one that cannot be had. That of a fork is not listed, and goes by itself. */
async function originOf(id, read) {
  try {
    const { sandboxId } = await read(`/v1/snapshots/${id}`);
    const { items } = await read(`/v1/snapshots?state=Ready&pageSize=1000&sandboxId=${sandboxId}`);
    return items.find((each) => each.id === id);
  } catch {
    return undefined;
  }
}

/** useSnapshots returns {items, total, base}, kept current by the events of the sandbox, the error of the last look, and what looks again.
 * base is the id of the snapshot that the files of the sandbox come from. items has it, too, when it is of another sandbox. */
function useSnapshots({ id, status: { state }, snapshotEvent }) {
  const { live } = useStore();
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [asked, ask] = useState(0);
  useEffect(() => {
    if (found && !live) return undefined; // the page says that the service does not answer
    const control = new AbortController();
    const { signal } = control;
    const foreign = {}; // by id; promises
    const read = (path) => call('GET', path, undefined, { signal });
    (async () => {
      if (found) await pause(settling, signal);
      for (;;) {
        const [{ items, pagination }, { snapshotId: base }] = await Promise.all([read(`/v1/sandboxes/${id}/snapshots?pageSize=${limit}`), read(`/v1/sandboxes/${id}`)]);
        const again = items.some(unsettled);
        if (base && pagination.totalItems <= limit && !items.some((each) => each.id === base)) {
          foreign[base] ??= originOf(base, read);
          const origin = await foreign[base];
          if (origin) items.push(origin);
        }
        if (signal.aborted) return;
        setFound({ items, total: pagination.totalItems, base });
        setError(null);
        if (!again) return;
        await pause(interval, signal);
      }
    })().catch((failure) => failure.name === 'AbortError' || setError(failure));
    return () => control.abort();
  }, [id, live, state, snapshotEvent, asked]);
  return [found, error, () => ask((n) => n + 1)];
}

/** useOnce returns what sends a POST that makes nothing twice when it is repeated because its answer was lost. */
function useOnce() {
  const sent = useRef({});
  return async (path, body) => {
    const text = JSON.stringify(body);
    if (sent.current.text !== text) sent.current = { text, key: crypto.getRandomValues(new Uint32Array(4)).join('-') };
    const answer = await call('POST', path, body, { headers: { 'Idempotency-Key': sent.current.key } });
    sent.current = {};
    return answer;
  };
}

export function Checkpoints({ sandbox }) {
  const { id, status } = sandbox;
  const [found, failed, look] = useSnapshots(sandbox);
  const [busy, run, error] = useAction();
  const [said, say] = useState('');
  const [asked, ask] = useState(null); // {what, snapshot}
  if (failed?.status === 501) return html`<p class="note" role="status">This service keeps no checkpoints: ${failed.message}</p>`;
  const alive = status.state === 'Running' || status.state === 'Paused';
  const close = () => ask(null);
  const take = (event) => {
    event.preventDefault();
    const form = event.target;
    const body = {};
    for (const name of ['name', 'comment']) if (form.elements[name].value.trim()) body[name] = form.elements[name].value.trim();
    if (form.elements.memory.checked) body.kind = 'memory';
    say('');
    run(async () => {
      const taken = await call('POST', `/v1/sandboxes/${id}/snapshots`, body, held);
      form.reset();
      say(usable(taken) ? `The snapshot ${called(taken)} is taken. The processes stood still for ${milliseconds(taken.freezeMs)}.` : `The snapshot ${called(taken)} is ${taken.status.state}.`);
      look();
    });
  };
  const rollBack = async () => {
    say('');
    await call('POST', `/v1/sandboxes/${id}/rollback`, { snapshotId: asked.snapshot.id }, held);
    const { status: { state, reason } } = await call('GET', `/v1/sandboxes/${id}`);
    if (state !== 'Resuming' && reason !== rollbackFailed) say(`The sandbox has the files of ${called(asked.snapshot)}.`);
    look();
  };
  const remove = async () => {
    say('');
    await call('DELETE', `/v1/snapshots/${asked.snapshot.id}`);
    look();
  };
  return html`${mayChange() && html`<form class="row" aria-label="Take a snapshot" onSubmit=${take}>
      <span class="named"><label for="snapshot-name">Name</label><input id="snapshot-name" name="name" maxlength="128" placeholder="none" spellcheck=${false} autocomplete="off" /></span>
      <span class="named"><label for="snapshot-comment">Comment</label><input id="snapshot-comment" name="comment" maxlength="4096" placeholder="none" autocomplete="off" /></span>
      <label title="Keeps the processes, too, with every secret that they have. It takes gVisor as the runtime of the sandbox."><input type="checkbox" name="memory" /> Memory</label>
      <button class="primary" disabled=${busy || !alive}>Take a snapshot</button>
      <span class="space"></span>
      <button type="button" disabled=${!alive} onClick=${() => ask({ what: 'fork' })}>Fork…</button>
    </form>`}
    <p class="dim said" role="status">${said || 'A snapshot keeps files, and with their memory processes. It does not keep volumes.'}</p>
    <${Problem} error=${error} />
    <${Problem} error=${failed} onRetry=${look} />
    ${status.reason === rollbackFailed && html`<${Problem} error=${new ApiError(0, status.reason, status.message)} />`}
    ${!found ? !failed && html`<${Empty}>Loading…<//>` : !found.items.length ? html`<${Empty}>No snapshot was taken of this sandbox.<//>` :
    html`<${Tree} id=${id} found=${found} alive=${alive} onAsk=${(what, snapshot) => ask({ what, snapshot })} />`}
    ${asked?.what === 'rollback' && html`<${Confirm} title=${`Roll back to ${called(asked.snapshot)}?`} verb="Roll back" onClose=${close} onConfirm=${rollBack}>
      <p>Every process in the sandbox ends, and its connections break off. It gets the files of the snapshot, and ${ofMemory(asked.snapshot) ? 'the processes of the snapshot go on' : 'its entrypoint starts again'}.</p>
      <p>What was written since the last snapshot is lost.</p><//>`}
    ${asked?.what === 'delete' && html`<${Confirm} title=${`Delete the snapshot ${called(asked.snapshot)}?`} verb="Delete" onClose=${close} onConfirm=${remove}>
      <p>No sandbox can be given its files any more. Those that have them keep them.</p><//>`}
    ${asked?.what === 'create' && html`<${Begin} snapshot=${asked.snapshot} onClose=${close} />`}
    ${asked?.what === 'changes' && html`<${Changes} snapshot=${asked.snapshot} parent=${found.items.find((each) => each.id === asked.snapshot.parentId && usable(each))} onClose=${close} />`}
    ${asked?.what === 'fork' && html`<${Fork} sandbox=${sandbox} onClose=${close} />`}`;
}

/** ofMemory is whether a snapshot has processes, which no sandbox but its own can be given. */
const ofMemory = ({ kind }) => kind === 'memory';

const rollbackFailed = 'ROLLBACK_FAILED';

function Tree({ id, found: { items, total, base }, alive, onAsk }) {
  return html`<table class="rows tree">
      <caption class="hidden">Snapshots, each below the one that came before it</caption>
      <thead><tr><th scope="col">Snapshot</th><th scope="col">State</th><th scope="col" class="number">Size</th><th scope="col" class="number">Stood still</th><th scope="col">Taken</th>
        ${mayChange() && html`<th scope="col"><span class="hidden">Actions</span></th>`}</tr></thead>
      <tbody>${tree(items).map((row) => html`<${Row} key=${row.snapshot.id} ...${row} own=${row.snapshot.sandboxId === id} current=${row.snapshot.id === base} alive=${alive} onAsk=${onAsk} />`)}</tbody>
    </table>
    ${total > limit && html`<p class="dim">The newest ${limit} of ${total}</p>`}`;
}

/** Lines draws how a snapshot hangs together with others; the text of the row says it, too. */
function Lines({ lane, from, past, down }) {
  const line = (kind, at) => html`<i key=${kind + at} class=${kind} style=${{ '--at': Math.min(at, lanes) }}></i>`;
  return html`<span class="lines" aria-hidden="true">${past.map((at) => line('past', at))}${from !== undefined && line(from < lane ? 'aside' : 'up', from)}${down && line('down', lane)}
    <i class="dot" style=${{ '--at': Math.min(lane, lanes) }}></i></span>`;
}

function Row({ snapshot, parent, own, current, alive, onAsk, ...lines }) {
  const { id, sandboxId, name, comment, status, size, treeDigest, freezeMs, createdAt, expiresAt } = snapshot;
  const ready = usable(snapshot);
  const known = called(snapshot);
  const button = (label, aria, what, on, look = '') => html`<button type="button" class=${look} aria-label=${`${aria} ${known}`} aria-disabled=${String(!on)}
    onClick=${() => { if (on) onAsk(what, snapshot); }}>${label}</button>`;
  return html`<tr style=${{ '--lane': Math.min(lines.lane, lanes) }} data-current=${String(current)}>
    <th scope="row"><${Lines} ...${lines} />
      <bdi>${known}</bdi> ${known === name && html`<code class="dim" title=${id}>${id.slice(0, 8)}</code>`} ${ofMemory(snapshot) && html`<span class="role">memory</span>`} ${current && html`<span class="role">the files come from here</span>`}
      ${parent && html`<span class="hidden">, after ${called(parent)}</span>`}
      ${!own && html`<div class="dim">taken of <a href=${`#/sandboxes/${sandboxId}/checkpoints`}>another sandbox</a></div>`}
      ${treeDigest && html`<div class="dim">files <code title=${treeDigest}>${treeDigest.replace('sha256:', '').slice(0, 12)}</code></div>`}
      ${comment && html`<div class="dim comment" title=${comment}>${comment}</div>`}
      ${status.reason && html`<div class="why"><code>${status.reason}</code> ${status.message}</div>`}
    </th>
    <td class="how"><${State} state=${status.state} /></td>
    <td data-label="Size" class="number">${ready ? bytes(size) : '–'}</td>
    <td data-label="Stood still" class="number">${ready ? milliseconds(freezeMs) : '–'}</td>
    <td data-label="Taken"><${Ago} at=${createdAt} />${expiresAt && html` <span class="dim">deleted in <${Left} until=${expiresAt} /></span>`}</td>
    ${mayChange() && html`<td class="tools">${button('Roll back…', 'Roll back to', 'rollback', alive && ready)}${button('New sandbox…', 'New sandbox from', 'create', ready && !ofMemory(snapshot))}${button('Changes…', 'Changes of', 'changes', ready)}${
    button('Delete…', 'Delete the snapshot', 'delete', status.state !== 'Deleting', 'danger')}</td>`}
  </tr>`;
}

/** Begin asks for the sandbox that begins with a snapshot. */
function Begin({ snapshot, onClose }) {
  const [seconds, setSeconds] = useState(3600);
  const name = useRef();
  const send = useOnce();
  const create = async () => {
    const body = { snapshotId: snapshot.id, timeout: seconds };
    if (name.current.value.trim()) body.metadata = { name: name.current.value.trim() };
    const { id } = await send('/v1/sandboxes', body);
    location.hash = `#/sandboxes/${id}`;
  };
  return html`<${Confirm} title=${`Create a sandbox from ${called(snapshot)}`} verb="Create" look="primary" onClose=${onClose} onConfirm=${create}>
    <p>It begins with the files of the snapshot, and has the entrypoint and the limits of the sandbox that this was taken of. It has none of its environment.</p>
    <p><label for="begin-name">Name</label><input id="begin-name" ref=${name} maxlength="4096" spellcheck=${false} autocomplete="off" /></p>
    <${LifeChoice} seconds=${seconds} onChange=${setSeconds} /><//>`;
}

/** Fork asks how many sandboxes begin with the files of this one, and shows those that it has made. */
function Fork({ sandbox, onClose }) {
  const [busy, run, error] = useAction();
  const [made, setMade] = useState([]);
  const send = useOnce();
  const submit = (event) => {
    event.preventDefault();
    const count = Number(event.target.elements.count.value);
    if (!busy) run(async () => { setMade((await send(`/v1/sandboxes/${sandbox.id}/fork`, { count })).items); });
  };
  return html`<${Modal} title=${`Fork ${nameOf(sandbox)}`} onClose=${onClose}>
    <form onSubmit=${submit}>
      <p>Each fork is a sandbox that begins with the files of this one, as they are now. It has none of its processes, and none of its environment.</p>
      <label for="count">Number of forks</label>
      <input id="count" name="count" type="number" min="1" max="100" defaultValue="1" required autofocus />
      <div role="status">${made.length > 0 && html`<p>${made.filter((each) => each.sandbox).length} of ${made.length} made:</p>
        <ul class="names">${made.map(({ sandbox: fork, error: refused }, at) => html`<li key=${at}>${fork ? html`<a href=${`#/sandboxes/${fork.id}`}>${nameOf(fork)}</a> <code class="dim">${fork.id.slice(0, 8)}</code>` :
    html`<span class="reason">${refused.code}</span> ${refused.message}`}</li>`)}</ul>`}</div>
      <${Problem} error=${error} />
      <div class="actions"><button type="button" onClick=${onClose}>Close</button><button class="primary" aria-disabled=${String(busy)}>Fork</button></div>
    </form>
  <//>`;
}
