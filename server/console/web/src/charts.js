// Processor and memory of a sandbox, live.
import { useEffect, useState } from 'preact/hooks';
import { daemon, follow } from './api.js';
import { bytes, html, Problem } from './ui.js';

const kept = 120; // samples, one a second
const histories = new Map(); // by sandbox, so that a chart is not empty when it is shown again

export function Charts({ sandbox: { id, status: { state } } }) {
  const [samples, setSamples] = useState(histories.get(id) ?? []);
  const [error, setError] = useState(null);
  useEffect(() => {
    if (state !== 'Running') return undefined;
    const control = new AbortController();
    follow(daemon(id, '/metrics/watch'), {
      signal: control.signal,
      onLive: (live) => live && setError(null),
      onEvent(sample) {
        const next = [...(histories.get(id) ?? []), sample].slice(-kept);
        histories.set(id, next);
        setSamples(next);
      },
    }).catch((failure) => failure.name === 'AbortError' || setError(failure));
    return () => control.abort();
  }, [id, state]);
  const last = samples.at(-1);
  return html`<${Problem} error=${error} /><div class="charts">
    <${Chart} title="Processor" samples=${samples} of=${(s) => s.cpu_used_pct / 100}
      now=${last && `${last.cpu_used_pct.toFixed(0)} % of ${last.cpu_count} ${last.cpu_count === 1 ? 'core' : 'cores'}`} paused=${state !== 'Running'} />
    <${Chart} title="Memory" samples=${samples} of=${(s) => s.mem_used_mib / s.mem_total_mib}
      now=${last && `${bytes(last.mem_used_mib * 2 ** 20)} of ${bytes(last.mem_total_mib * 2 ** 20)}`} paused=${state !== 'Running'} />
  </div>`;
}

function Chart({ title, samples, of, now, paused }) {
  const points = samples.map((sample, i) => [kept - samples.length + i, 40 - 38 * Math.min(1, Math.max(0, of(sample))) - 1]);
  const line = points.map(([x, y]) => `${x},${y.toFixed(2)}`).join(' ');
  return html`<figure>
    <figcaption>${title} <b>${now ?? '–'}</b> ${paused && html`<span class="dim">not running</span>`}</figcaption>
    <svg viewBox="0 0 ${kept - 1} 40" preserveAspectRatio="none" role="img" aria-label=${`${title}, the last two minutes: ${now ?? 'no samples'}`}>
      <path class="grid" d="M0 10H${kept}M0 20H${kept}M0 30H${kept}" />
      ${points.length > 1 && html`<polygon points=${`${points[0][0]},40 ${line} ${points.at(-1)[0]},40`} /><polyline points=${line} />`}
    </svg>
  </figure>`;
}
