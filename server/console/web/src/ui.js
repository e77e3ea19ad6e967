// Small parts that every page uses.
import { h } from 'preact';
import { useEffect, useReducer, useRef, useState } from 'preact/hooks';
import htm from 'htm';
import { ApiError } from './api.js';

export const html = htm.bind(h);

/** Problem shows an error as the API sent it: its message names the field and the rule. */
export function Problem({ error, onRetry }) {
  if (!error) return null;
  const code = error instanceof ApiError ? error.code : 'ERROR';
  return html`<div class="problem" role="alert">
    <p><code>${code}</code> ${error.message}</p>
    ${error.requestId && html`<p class="dim">Request ${error.requestId}</p>`}
    ${onRetry && html`<button type="button" onClick=${onRetry}>Try again</button>`}
  </div>`;
}

/** State shows the state of a sandbox, with its colour. */
export function State({ state }) {
  return html`<span class="state" data-state=${state}>${state}</span>`;
}

/** Empty explains why there is nothing. */
export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

/** Modal is a dialog. It closes with Escape, and gives the focus back. */
export function Modal({ title, onClose, children }) {
  const ref = useRef();
  useEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    dialog.showModal();
    return () => {
      dialog.close();
      before?.focus?.();
    };
  }, []);
  return html`<dialog ref=${ref} aria-labelledby="modal-title" onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <h2 id="modal-title">${title}</h2>
    ${children}
  </dialog>`;
}

/** Confirm asks before something is done. */
export function Confirm({ title, verb, look = 'danger', onConfirm, onClose, children }) {
  const [busy, run, error] = useAction();
  return html`<${Modal} title=${title} onClose=${onClose}>
    <form onSubmit=${(event) => { event.preventDefault(); run(async () => { await onConfirm(); onClose(); }); }}>
      ${children}
      <${Problem} error=${error} />
      <div class="actions">
        <button type="button" onClick=${onClose}>Cancel</button>
        <button class=${look} autofocus disabled=${busy}>${verb}</button>
      </div>
    </form>
  <//>`;
}

/** useAction returns whether an action runs, what starts one, the error of the last one, and what clears that. */
export function useAction() {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const run = async (action) => {
    setBusy(true);
    setError(null);
    try {
      return await action();
    } catch (failure) {
      if (failure.name !== 'AbortError') setError(failure);
    } finally {
      setBusy(false);
    }
  };
  return [busy, run, error, () => setError(null)];
}

/** Copy copies a text. */
export function Copy({ text, label }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
    } else { // a page without TLS on another host than localhost has no clipboard
      const area = document.createElement('textarea');
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand('copy');
      area.remove();
    }
    setDone(true);
  };
  return html`<button type="button" class="quiet" aria-label=${label} title=${label} onClick=${copy}>${done ? 'Copied' : 'Copy'}</button>`;
}

/** useTick renders again every second. */
export function useTick() {
  const [, again] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    const timer = setInterval(again, 1000);
    return () => clearInterval(timer);
  }, []);
}

/** Left counts down to a time. */
export function Left({ until }) {
  useTick();
  const seconds = Math.floor((new Date(until) - Date.now()) / 1000);
  return html`<time datetime=${until} title=${moment(until)} class=${seconds < 60 ? 'soon' : ''}>${seconds > 0 ? duration(seconds) : 'now'}</time>`;
}

/** Ago shows how long ago something was. */
export function Ago({ at }) {
  useTick();
  const seconds = Math.max(0, Math.floor((Date.now() - new Date(at)) / 1000));
  return html`<time datetime=${at} title=${moment(at)}>${seconds < 1 ? 'now' : `${duration(seconds)} ago`}</time>`;
}

/** duration writes seconds in the two largest units. */
export function duration(seconds) {
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']];
  const first = parts.findIndex(([size]) => seconds >= size);
  if (first < 0) return '0s';
  const [size, unit] = parts[first];
  const next = parts[first + 1];
  const text = `${Math.floor(seconds / size)}${unit}`;
  return next ? `${text} ${Math.floor((seconds % size) / next[0])}${next[1]}` : text;
}

/** moment writes a time in the user's own way. */
export const moment = (at) => new Date(at).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' });

/** clock writes the time of a day with milliseconds. */
export const clock = (at) => {
  const date = new Date(at);
  return `${date.toLocaleTimeString(undefined, { hour12: false })}.${String(date.getMilliseconds()).padStart(3, '0')}`;
};

/** bytes writes a size. */
export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
  return `${unit && n < 10 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

/** plain takes the escape sequences of terminals out of a text. */
export const plain = (text) => text.replace(/\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])/g, '');

const visible = /[^\p{Z}\p{Cc}\p{Cf}\p{M}\p{DI}\u2800]/u;

/** nameOf is what people call a sandbox: its name if there is something to see of it, or else the beginning of its id. */
export const nameOf = ({ id, metadata }) => (visible.test(metadata?.name ?? '') ? metadata.name : id.slice(0, 8));

/** Tabs is a list of tabs for the keyboard: arrows move, Home and End jump. */
export function Tabs({ label, tabs, current, onSelect, extra }) {
  const list = useRef();
  const move = (event) => {
    const at = tabs.findIndex((tab) => tab.id === current);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined || event.target.getAttribute('role') !== 'tab') return;
    event.preventDefault();
    const next = tabs[(to + tabs.length) % tabs.length];
    onSelect(next.id);
    list.current.querySelector(`[data-tab="${next.id}"]`)?.focus();
  };
  useEffect(() => {
    list.current.querySelector('[aria-selected=true]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }, [current]);
  return html`<div class="tabs">
    <div role="tablist" aria-label=${label} ref=${list} onKeyDown=${move}>
      ${tabs.map((tab) => html`<button type="button" role="tab" key=${tab.id} data-tab=${tab.id} id=${`tab-${tab.id}`} aria-selected=${String(tab.id === current)}
        aria-controls=${tab.id === current ? `panel-${tab.id}` : undefined} tabindex=${tab.id === current ? 0 : -1}
        onClick=${() => onSelect(tab.id)}>${tab.label}</button>`)}
    </div>
    ${extra}
  </div>`;
}

/** sleep says in words when a sandbox falls asleep or ends by itself, but for its end. */
export function sleep({ onIdle, idleSeconds, hibernateSeconds, onTimeout, autoResume }) {
  const idle = { none: [], pause: [`paused after ${idleSeconds} s idle`], hibernate: [`paused after ${idleSeconds} s idle`, `on the disk ${hibernateSeconds} s later`], delete: [`deleted after ${idleSeconds} s idle`] }[onIdle] ?? [`${onIdle} after ${idleSeconds} s idle`];
  const parts = [...idle, ...(onTimeout === 'pause' ? ['paused when its time is up'] : [])];
  if (parts.length && !autoResume) parts.push('not woken by requests');
  return parts.join(', ') || 'no';
}
