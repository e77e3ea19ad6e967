package host

import (
	"cmp"
	"context"
	"slices"

	"sandbox.internal/server/lifecycle"
)

// kin are snapshots and sandboxes by what they are related to. The keys are ids, which may be of
// what is gone.
type kin map[string][]string

func (k kin) relate(a, b string) {
	if a != "" && b != "" {
		k[a], k[b] = append(k[a], b), append(k[b], a)
	}
}

// all returns everything that is related to an id, at whatever distance.
func (k kin) all(id string) map[string]bool {
	found, left := map[string]bool{id: true}, []string{id}
	for len(left) > 0 {
		next := left[len(left)-1]
		left = left[:len(left)-1]
		for _, other := range k[next] {
			if !found[other] {
				found[other] = true
				left = append(left, other)
			}
		}
	}
	return found
}

// Lineage implements lifecycle.SnapshotStore.
func (h *Host) Lineage(_ context.Context, sandboxID string, owner *string) (lifecycle.Lineage, error) {
	var lineage lifecycle.Lineage
	if err := h.options.Boxes.SnapshotsUnsupported(); err != nil {
		return lineage, err
	}
	if _, err := h.registry.get(sandboxID); err != nil {
		return lineage, err
	}
	snapshots, related := h.snapshots.all(), kin{}
	var records []*lifecycle.Record
	for _, a := range h.registry.all() {
		records = append(records, a.snapshot())
	}
	for _, s := range snapshots {
		related.relate(s.ID, s.SandboxID)
		related.relate(s.ID, s.ParentID)
	}
	for _, r := range records {
		related.relate(r.Sandbox.ID, r.Sandbox.SnapshotID)
		related.relate(r.Sandbox.ID, r.ParentSandbox)
	}
	found := related.all(sandboxID)
	for _, s := range snapshots {
		if found[s.ID] && !s.Temporary && (owner == nil || s.Owner == *owner) {
			lineage.Snapshots = append(lineage.Snapshots, s.Clone())
		}
	}
	for _, r := range records {
		if found[r.Sandbox.ID] && (owner == nil || r.Sandbox.Owner == *owner) {
			lineage.Sandboxes = append(lineage.Sandboxes, lifecycle.LineageSandbox{Sandbox: r.Sandbox.Clone(), ParentID: r.ParentSandbox})
		}
	}
	slices.SortFunc(lineage.Snapshots, func(a, b lifecycle.Snapshot) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(lineage.Sandboxes, func(a, b lifecycle.LineageSandbox) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	const most = lifecycle.MaxLineage
	lineage.Truncated = len(lineage.Snapshots) > most || len(lineage.Sandboxes) > most
	lineage.Snapshots, lineage.Sandboxes = lineage.Snapshots[:min(len(lineage.Snapshots), most)], lineage.Sandboxes[:min(len(lineage.Sandboxes), most)]
	return lineage, nil
}
