// What a sandbox may reach, and what it reached.
import { useEffect, useState } from 'preact/hooks';
import { call, follow } from './api.js';
import { mayChange } from './store.js';
import { Ago, Confirm, Empty, html, Problem, useAction } from './ui.js';

const limit = 1000; // decisions that are shown

export function Network({ sandbox: { id, status: { state } } }) {
  const path = `/v1/sandboxes/${id}/network-policy`;
  const [policy, setPolicy] = useState(null);
  const [failed, setFailed] = useState(null);
  const [busy, run, error] = useAction();
  const [proposal, setProposal] = useState(null);
  const readable = state === 'Running' || state === 'Paused';
  useEffect(() => {
    setFailed(null);
    if (readable) call('GET', path).then(setPolicy, setFailed);
  }, [id, readable]);
  if (!readable && !policy) return html`<p class="note" role="status">The sandbox is ${state}. The network policy of a sandbox can be read while it is Running or Paused.</p>`;
  if (failed?.status === 409 && failed.message.includes('no egress sidecar')) return html`<${NoPolicy} message=${failed.message} />`;
  if (failed) return html`<${Problem} error=${failed} />`;
  if (!policy) return html`<${Empty}>Loading…<//>`;
  const replace = (next) => run(async () => setPolicy(await call('PUT', path, next)));
  const rules = policy.egress ?? [];
  const add = (event) => {
    event.preventDefault();
    const form = event.target;
    const { action, target } = form.elements;
    run(async () => {
      setPolicy(await call('PATCH', path, [{ action: action.value, target: target.value.trim() }]));
      form.reset();
    });
  };
  return html`<${Problem} error=${error} />
    <h2>Policy</h2>
    <p>${inWords(policy, rules)}</p>
    ${mayChange() ? html`<div class="row">
      <label for="default">What no rule matches</label>
      <select id="default" value=${policy.defaultAction ?? 'allow'} disabled=${busy} onChange=${(event) => replace({ ...policy, defaultAction: event.target.value })}>
        ${['allow', 'deny'].map((action) => html`<option value=${action}>${action}</option>`)}
      </select>
      <label><input type="checkbox" checked=${Boolean(policy.dryRun)} disabled=${busy} onChange=${(event) => replace({ ...policy, dryRun: event.target.checked })} /> Dry run: record, and let everything pass</label>
      <span class="space"></span>
      <button type="button" disabled=${busy} onClick=${() => run(async () => setProposal(await call('GET', `/v1/sandboxes/${id}/network-decisions/proposal`)))}>Propose an allow-list…</button>
    </div>` : html`<p>What no rule matches: <b>${policy.defaultAction ?? 'allow'}</b>${policy.dryRun && ', dry run'}</p>`}
    ${rules.length > 0 && html`<${Rules} rules=${rules} remove=${mayChange() && ((target) => run(async () => setPolicy(await call('DELETE', path, [target]))))} busy=${busy} />`}
    ${mayChange() && html`<form class="row" onSubmit=${add}>
      <label for="action">New rule</label>
      <select id="action" name="action"><option>allow</option><option>deny</option></select>
      <input name="target" required maxlength="255" aria-label="Domain, wildcard domain or CIDR range" placeholder="*.example.com or 10.0.0.0/8" spellcheck=${false} />
      <button disabled=${busy}>Add</button>
    </form>`}
    <h2>Decisions</h2>
    <${Decisions} id=${id} live=${readable} />
    ${proposal && html`<${Confirm} title="The smallest allow-list for what was seen" verb="Apply" look="primary" onClose=${() => setProposal(null)} onConfirm=${async () => setPolicy(await call('PUT', path, proposal))}>
      <p>It denies by default, and takes the place of the policy.</p>
      ${proposal.egress?.length ? html`<${Rules} rules=${proposal.egress} />` : html`<${Empty}>Nothing was seen: it would allow nothing.<//>`}
    <//>`}`;
}

/** inWords says what a policy permits. */
function inWords({ defaultAction = 'allow', dryRun }, rules) {
  const allows = rules.some(({ action }) => action === 'allow');
  const denies = rules.some(({ action }) => action === 'deny');
  const effect = defaultAction === 'deny' ?
    (allows ? 'The sandbox reaches only what a rule allows.' : 'The sandbox reaches nothing outside of it.') :
    (denies ? 'The sandbox reaches everything but what a rule denies.' : 'There is no policy that restricts the sandbox: it reaches everything that the network of its host does.');
  return dryRun ? `Dry run: the service records decisions and lets everything pass. Without it: ${effect}` : effect;
}

/** NoPolicy explains a sandbox that cannot have a policy. */
function NoPolicy({ message }) {
  return html`<div class="note"><p><b>This sandbox has no network policy, and cannot get one.</b> It reaches everything that the network of its host does,
      and its connections are not recorded.</p>
    <p>A policy needs a filter beside the sandbox, which the service starts when it creates one. For the next sandboxes: set <code>egress.image</code> in the
      configuration of the service, with a network mode other than <code>host</code>; then create a sandbox with a policy, or add one on this page.</p>
    <p class="dim">The service: ${message}</p></div>`;
}

function Rules({ rules, remove, busy }) {
  return html`<table class="rows"><caption class="hidden">Rules; the first that matches decides</caption>
    <thead><tr><th scope="col">Action</th><th scope="col">Target</th>${remove && html`<th scope="col"><span class="hidden">Delete</span></th>`}</tr></thead>
    <tbody>${rules.map((rule) => html`<tr key=${rule.target}><td><span class="verdict" data-action=${rule.action}>${rule.action}</span></td><th scope="row"><code>${rule.target}</code></th>
      ${remove && html`<td class="tools"><button type="button" disabled=${busy} aria-label=${`Delete the rule for ${rule.target}`} onClick=${() => remove(rule.target)}>Delete</button></td>`}</tr>`)}</tbody></table>`;
}

function Decisions({ id, live }) {
  const [all, setAll] = useState([]);
  const [error, setError] = useState(null);
  useEffect(() => {
    if (!live) return undefined;
    const control = new AbortController();
    let seen = new Map();
    follow(`/v1/sandboxes/${id}/network-decisions`, {
      signal: control.signal,
      onEvent(decision) {
        if (!decision.kind) return; // a ping
        const key = [decision.kind, decision.target, decision.protocol, decision.port, decision.action, decision.rule].join(' ');
        seen.delete(key);
        seen = new Map([[key, { ...decision, key }], ...seen].slice(0, limit));
        setAll([...seen.values()]);
      },
    }).catch((failure) => failure.name === 'AbortError' || setError(failure));
    return () => control.abort();
  }, [id, live]);
  if (error) return html`<${Problem} error=${error} />`;
  if (!all.length) return html`<${Empty}>Nothing was allowed or denied yet.<//>`;
  return html`<table class="rows"><caption class="hidden">Decisions, the latest first</caption>
    <thead><tr><th scope="col">Action</th><th scope="col">Target</th><th scope="col">Why</th><th scope="col">Count</th><th scope="col">Last</th></tr></thead>
    <tbody>${all.map((decision) => html`<tr key=${decision.key}>
      <td><span class="verdict" data-action=${decision.action}>${decision.action}</span>${decision.dryRun && html` <span class="dim">dry run</span>`}</td>
      <th scope="row"><code>${decision.target}</code> ${decision.protocol && html`<span class="dim">${decision.protocol}${decision.port ? ` ${decision.port}` : ''}</span>`}
        ${decision.names?.length > 0 && html`<div class="dim">${decision.names.join(', ')}</div>`}</th>
      <td data-label="Why">${decision.reason}${decision.rule && html` <code>${decision.rule}</code>`}</td>
      <td data-label="Count" class="number">${decision.count}</td>
      <td data-label="Last"><${Ago} at=${decision.lastSeen} /></td></tr>`)}</tbody></table>`;
}
