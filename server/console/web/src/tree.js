// The snapshots of a sandbox as lines and dots, as the log of a version control draws its commits.

/** tree orders snapshots, of which the newest is the first, so that each comes after its parent. The newest child of a snapshot goes
 * on in its lane, and each other one begins a lane to the right, above it.
 *
 * @param {{id: string, parentId?: string}[]} snapshots
 * @returns {{snapshot: object, parent?: object, lane: number, from?: number, past: number[], down: boolean}[]} rows from above to below: from
 *   is the lane of the parent, past are the lanes whose lines go past the dot, and down is whether a line goes on below it.
 */
export function tree(snapshots) {
  const known = new Map(snapshots.map((snapshot) => [snapshot.id, snapshot]));
  const children = new Map();
  for (const snapshot of snapshots) {
    const of = known.has(snapshot.parentId) ? snapshot.parentId : undefined;
    children.set(of, [...(children.get(of) ?? []), snapshot]);
  }
  const rows = [];
  const next = (children.get(undefined) ?? []).map((snapshot) => ({ snapshot, lane: 0, past: [] })); // the last one is drawn first
  while (next.length) {
    const row = next.pop();
    const { snapshot, lane, past } = row;
    const [newest, ...others] = children.get(snapshot.id) ?? [];
    rows.push({ ...row, down: newest !== undefined });
    if (newest) next.push({ snapshot: newest, parent: snapshot, lane, from: lane, past });
    next.push(...others.map((child) => ({ snapshot: child, parent: snapshot, lane: lane + 1, from: lane, past: [...past, lane] })));
  }
  return rows;
}
