package compat

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
)

const (
	bareSnapshots = "/snapshots"
	snapshotsPath = versioned + bareSnapshots
)

// ofSnapshots reports whether the path is one of the service's operations on snapshots.
func ofSnapshots(path string) bool {
	return path == snapshotsPath || strings.HasPrefix(path, snapshotsPath+"/") || strings.HasPrefix(path, sandboxesPath+"/") && strings.HasSuffix(path, bareSnapshots)
}

// routeSnapshots returns what translates a request for snapshots, nil for what passes as it is.
func (x *exchange) routeSnapshots() func() {
	switch id := strings.Trim(strings.TrimPrefix(x.r.URL.Path, snapshotsPath), "/"); {
	case x.r.Method != http.MethodGet || strings.Contains(id, "/"):
		return nil
	case id == "":
		return x.listSnapshots
	default:
		return func() { x.sendSnapshot(x.ask(http.MethodGet, x.r.URL.Path, x.r.URL.Query(), nil)) }
	}
}

// takeSnapshot answers with the snapshot that is being made. A body may be absent.
func (x *exchange) takeSnapshot() {
	body, ok := x.take()
	if !ok {
		x.pass()
		return
	}
	var fields object
	if json.Unmarshal(body, &fields) == nil && fields != nil {
		dropNulls(fields)
		body = encode(fields)
	} else if len(body) == 0 {
		body = []byte("{}")
	}
	x.r.Header.Set("Content-Type", "application/json")
	x.sendSnapshot(x.ask(http.MethodPost, x.r.URL.Path, x.r.URL.Query(), body))
}

// sendSnapshot answers with the snapshot of an answer, or with the error that it is.
func (x *exchange) sendSnapshot(a *answer) {
	var snapshot object
	if !a.OK() || json.Unmarshal(a.Body.Bytes(), &snapshot) != nil {
		a.send(x.w)
		return
	}
	a.sendJSON(x.w, fromSnapshot(snapshot))
}

func (x *exchange) listSnapshots() {
	found := x.ask(http.MethodGet, snapshotsPath, x.r.URL.Query(), nil)
	var page object
	var items []object
	if !found.OK() || json.Unmarshal(found.Body.Bytes(), &page) != nil || json.Unmarshal(page["items"], &items) != nil {
		found.send(x.w)
		return
	}
	for i, snapshot := range items {
		items[i] = fromSnapshot(snapshot)
	}
	page["items"] = encode(items)
	found.sendJSON(x.w, page)
}

// theirSnapshotFields are the fields of a snapshot that OpenSandbox has.
var theirSnapshotFields = []string{"id", "sandboxId", "name", "status", "createdAt"}

// fromSnapshot returns a snapshot with their fields.
func fromSnapshot(snapshot object) object {
	maps.DeleteFunc(snapshot, func(name string, value json.RawMessage) bool {
		return !slices.Contains(theirSnapshotFields, name) || is(value, "null")
	})
	return snapshot
}
