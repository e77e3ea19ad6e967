// The terminals of a sandbox, each in a tab. They live in the sandbox, so they are still there when the page is loaded again.
import { useEffect, useRef, useState } from 'preact/hooks';
import { call, daemon } from './api.js';
import { attach } from './attach.js';
import { unusable } from './state.js';
import { Empty, html, Problem, Tabs, useAction } from './ui.js';

/** part is the id of the terminal to show first. */
export function Terminals({ sandbox, part }) {
  const { id, status: { state } } = sandbox;
  const reason = unusable(sandbox);
  const [list, setList] = useState(null);
  const [current, setCurrent] = useState(null);
  const [busy, run, error] = useAction();
  const [aloud, setAloud] = useState(false);
  const fresh = useRef(null); // the terminal that gets the focus when it is shown
  useEffect(() => {
    if (state !== 'Running' || list) return;
    run(async () => {
      const running = (await call('GET', daemon(id, '/pty'))).filter((terminal) => terminal.running);
      setList(running.map((terminal) => ({ id: terminal.id, title: terminal.command[0].split('/').pop() })));
      setCurrent((running.find((terminal) => terminal.id === part) ?? running.at(-1))?.id ?? null);
    });
  }, [id, state]);
  const open = () => run(async () => {
    const { id: made } = await call('POST', daemon(id, '/pty'), {});
    fresh.current = made;
    setList((old) => [...(old ?? []), { id: made, title: 'shell' }]);
    setCurrent(made);
  });
  const close = (terminal) => run(async () => {
    await call('DELETE', daemon(id, `/pty/${terminal}`)).catch((failure) => { if (failure.status !== 404) throw failure; });
    const left = list.filter((each) => each.id !== terminal);
    setList(left);
    setCurrent(left.at(-1)?.id ?? null);
  });
  const tabs = (list ?? []).map((terminal, i) => ({ id: terminal.id, label: `${i + 1} ${terminal.title}` }));
  return html`<${Problem} error=${error} />
    ${reason && html`<p class="note" role="status">${reason}</p>`}
    <div class="row">
      <button type="button" onClick=${open} disabled=${busy || Boolean(reason)}>New terminal</button>
      ${current && html`<button type="button" onClick=${() => close(current)} disabled=${busy || Boolean(reason)}>Close this terminal</button>`}
      <label><input type="checkbox" checked=${aloud} onChange=${(event) => setAloud(event.target.checked)} /> For a screen reader</label>
      <span class="dim">Shift Esc leaves the terminal</span>
    </div>
    ${tabs.length > 0 && html`<${Tabs} label="Terminals" tabs=${tabs} current=${current} onSelect=${setCurrent} />`}
    ${list?.length === 0 && !reason && html`<${Empty}>No terminal is open.<//>`}
    ${(list ?? []).map((terminal) => html`<div key=${terminal.id} role="tabpanel" id=${`panel-${terminal.id}`} aria-labelledby=${`tab-${terminal.id}`} hidden=${terminal.id !== current}>
      <${View} id=${id} terminal=${terminal.id} enabled=${!reason} aloud=${aloud} focus=${fresh} />
    </div>`)}`;
}

function View({ id, terminal, enabled, aloud, focus }) {
  const box = useRef();
  const view = useRef();
  const [status, setStatus] = useState({});
  useEffect(() => {
    const control = new AbortController();
    const { signal } = control;
    (async () => {
      const { open } = await import('./terminal.js');
      if (signal.aborted) return;
      let link;
      view.current = open(box.current, {
        screenReader: aloud,
        onInput: (bytes) => link?.input(bytes),
        onSize: (rows, cols) => link?.resize(rows, cols),
        onLeave: () => document.getElementById(`tab-${terminal}`)?.focus(),
      });
      view.current.enable(enabled);
      link = attach(id, terminal, view.current, { signal, onStatus: setStatus });
      if (focus.current === terminal) {
        focus.current = null;
        view.current.focus();
      }
    })();
    return () => {
      control.abort();
      view.current?.dispose();
    };
  }, [id, terminal]);
  useEffect(() => { view.current?.enable(enabled && !status.ended); }, [enabled, status.ended]);
  useEffect(() => { view.current?.readAloud(aloud); }, [aloud]);
  return html`<div class="screen" ref=${box} data-live=${String(Boolean(status.live))}></div>
    <p class="dim" role="status">${status.ended ? `The program ended with exit code ${status.ended.code ?? 'unknown'}.` :
    status.error ? `${status.error.code}: ${status.error.message}` : status.live ? 'Connected' : 'Connecting…'}</p>`;
}
