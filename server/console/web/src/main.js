// The page: who is signed in, where it is, and the keys that work everywhere.
import { render } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { Create } from './create.js';
import { Detail } from './detail.js';
import { Images } from './images.js';
import { Keys } from './keys.js';
import { Overview } from './overview.js';
import { SignIn } from './signin.js';
import { leave, mayChange, start, useStore } from './store.js';
import { clock, html, Modal, moment, Problem, useAction, useTick } from './ui.js';

/** route reads the part of the URL that says what is shown: #/, #/new, #/new/ID (like an ended sandbox), #/images, #/keys or #/sandboxes/ID/TAB/PART. */
function route() {
  let parts;
  try {
    parts = location.hash.split('/').map((part) => decodeURIComponent(part));
  } catch { // a % that begins no character
    parts = [];
  }
  const [, first, id, tab, part] = parts;
  if (first === 'new') return { page: 'new', id };
  if (first === 'images' || first === 'keys') return { page: first };
  if (first === 'sandboxes' && id) return { page: 'sandbox', id, tab, part };
  return { page: 'overview' };
}

function useRoute() {
  const [at, go] = useState(route);
  useEffect(() => {
    const changed = () => go(route());
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  return at;
}

const typing = (element) => element.closest('input, textarea, select, [contenteditable], dialog, .screen');

function useKeys(onHelp) {
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
      if (event.key === '?') onHelp();
      else if (event.key === 'o') location.hash = '#/';
      else if (event.key === 'n' && mayChange()) location.hash = '#/new';
      else if (event.key === '/' && document.getElementById('search')) document.getElementById('search').focus();
      else return;
      event.preventDefault();
    };
    addEventListener('keydown', pressed);
    return () => removeEventListener('keydown', pressed);
  }, []);
}

function Shortcuts({ onClose }) {
  const keys = [['o', 'Overview'], ['n', 'New sandbox'], ['/', 'Search the sandboxes'], ['← →', 'Move between tabs'],
    ['Ctrl Enter', 'Run a cell'], ['Shift Enter', 'Run a cell and go to the next'], ['Ctrl S', 'Save a file'], ['Shift Esc', 'Leave the terminal'], ['Esc', 'Close a dialog']];
  return html`<${Modal} title="Keyboard" onClose=${onClose}>
    <dl class="facts">${keys.filter(([key]) => key !== 'n' || mayChange()).map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <div class="actions"><button type="button" autofocus onClick=${onClose}>Close</button></div>
  <//>`;
}

const patience = 1500; // ms without the service until the page says so: a reverse proxy that is restarted takes less

/** Lost says that the service does not answer, and from when what is shown is. */
function Lost() {
  const { lostAt, loaded } = useStore();
  useTick();
  if (!lostAt || Date.now() - lostAt < patience) return null;
  return html`<div class="lost" role="alert"><b>The service does not answer.</b>
    ${loaded && html` What this page shows is from ${clock(lostAt).slice(0, 8)} and may have changed since.`} The page tries again by itself.</div>`;
}

function Bar({ at, onHelp }) {
  const { session, live, loaded, keyRequired } = useStore();
  const [, run, error] = useAction();
  return html`<header class="bar">
    <a class="brand" href="#/">Sandboxes</a>
    ${session.role === 'admin' && html`<nav aria-label="Pages">${['images', 'keys'].map((page) => html`<a key=${page} href=${`#/${page}`} aria-current=${at.page === page ? 'page' : undefined}>${page === 'images' ? 'Images' : 'API keys'}</a>`)}</nav>`}
    <span class="live" role="status">${live ? 'Live' : loaded ? 'Reconnecting…' : 'Connecting…'}</span>
    <span class="space"></span>
    <span class="who" title=${`The session ends ${moment(session.expiresAt)}`}>${session.name || 'no key'} <span class="role">${session.role}</span></span>
    <a href="/docs" target="_blank" rel="noopener">API</a>
    <button type="button" class="quiet" aria-label="Keyboard" onClick=${onHelp}>?</button>
    ${keyRequired && html`<button type="button" class="quiet" onClick=${() => run(leave)}>Sign out</button>`}
    <${Problem} error=${error} />
    <${Lost} />
  </header>`;
}

function App() {
  const { session } = useStore();
  const wanted = useRoute();
  const mayNot = session && ((wanted.page === 'new' && !mayChange()) || (['images', 'keys'].includes(wanted.page) && session.role !== 'admin'));
  const at = mayNot ? { page: 'overview' } : wanted;
  const [help, setHelp] = useState(false);
  const main = useRef();
  useKeys(() => setHelp(true));
  useEffect(() => { main.current?.focus({ preventScroll: true }); }, [at.page, at.id]);
  if (session === undefined) return html`<p class="empty" role="status">Loading…</p>`;
  if (session === null) return html`<${SignIn} />`;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <${Bar} at=${at} onHelp=${() => setHelp(true)} />
    <main id="main" ref=${main} tabindex="-1">
      ${at.page === 'overview' && html`<${Overview} />`}
      ${at.page === 'new' && html`<${Create} key=${at.id} again=${at.id} />`}
      ${at.page === 'images' && html`<${Images} />`}
      ${at.page === 'keys' && html`<${Keys} />`}
      ${at.page === 'sandbox' && html`<${Detail} key=${at.id} id=${at.id} tab=${at.tab} part=${at.part} />`}
    </main>
    ${help && html`<${Shortcuts} onClose=${() => setHelp(false)} />`}`;
}

render(html`<${App} />`, document.getElementById('console'));
start();
