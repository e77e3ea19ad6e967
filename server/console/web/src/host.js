// How busy the host is, for sessions that see all sandboxes.
import { useEffect, useState } from 'preact/hooks';
import { follow } from './api.js';
import { useStore } from './store.js';
import { bytes, html } from './ui.js';

export function HostLoad() {
  const { session } = useStore();
  const [load, setLoad] = useState(null);
  const allowed = session?.role === 'admin' || session?.role === 'viewer';
  useEffect(() => {
    if (!allowed) return undefined;
    const control = new AbortController();
    follow('/v1/host/load', {
      signal: control.signal,
      onLive: (live) => live || setLoad(null),
      onEvent: (event) => setLoad(event),
    }).catch(() => {}); // a service whose sandboxes run elsewhere has no load
    return () => control.abort();
  }, [allowed]);
  if (!load) return null;
  const of = (used, total) => `${bytes(used)} of ${bytes(total)}`;
  return html`<ul class="host" aria-label="Load of the host">
    <${Part} label="Processor" part=${load.cpuUsedPercent / 100} text=${`${load.cpuUsedPercent.toFixed(0)} % of ${load.cpuCount} ${load.cpuCount === 1 ? 'core' : 'cores'}`} />
    <${Part} label="Memory" part=${load.memoryUsedBytes / load.memoryTotalBytes} text=${of(load.memoryUsedBytes, load.memoryTotalBytes)} />
    <${Part} label="Disk" part=${load.diskUsedBytes / load.diskTotalBytes} text=${of(load.diskUsedBytes, load.diskTotalBytes)} />
  </ul>`;
}

function Part({ label, part, text }) {
  return html`<li>${label} <b>${text}</b><meter min="0" max="1" high="0.9" value=${part} aria-label=${label}>${text}</meter></li>`;
}
