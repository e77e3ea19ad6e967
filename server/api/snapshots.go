package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/server/lifecycle"
)

// SnapshotField is the field of the access log with the snapshot that a request is about.
const SnapshotField = "snapshot_id"

// defaultForks is how many sandboxes a fork creates that does not say it.
const defaultForks = 1

// snapshotStore returns what keeps snapshots, where there is such.
func (h *handlers) snapshotStore() (lifecycle.SnapshotStore, error) {
	if h.snapshots == nil {
		return nil, lifecycle.Unsupportedf(
			"this service has no snapshots: they take the local engine (runtime.type local)")
	}
	return h.snapshots, nil
}

// authorizedSnapshot returns the snapshot if allowed holds for the caller and the snapshot.
func (h *handlers) authorizedSnapshot(
	ctx context.Context, id string, allowed func(p lifecycle.Principal, owner string) error,
) (lifecycle.Snapshot, error) {
	serve.LogField(ctx, SnapshotField, id)
	store, err := h.snapshotStore()
	if err != nil {
		return lifecycle.Snapshot{}, err
	}
	snapshot, err := store.Snapshot(ctx, id)
	if err != nil {
		return lifecycle.Snapshot{}, err
	}
	if err := allowed(caller(ctx), snapshot.Owner); err != nil {
		return lifecycle.Snapshot{}, err
	}
	return snapshot, nil
}

// snapshotRequest returns a request of the caller, without name, comment and time to live.
func (h *handlers) snapshotRequest(ctx context.Context) lifecycle.SnapshotRequest {
	return lifecycle.SnapshotRequest{
		Kind:         lifecycle.SnapshotFilesystem,
		Owner:        caller(ctx).Name,
		MaxSnapshots: h.maxSnapshots,
		MaxBytes:     h.maxSnapshotsBytes,
	}
}

func (h *handlers) TakeSnapshot(
	ctx context.Context, request gen.TakeSnapshotRequestObject,
) (gen.TakeSnapshotResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanUse); err != nil {
		return nil, err
	}
	store, err := h.snapshotStore()
	if err != nil {
		return nil, err
	}
	asked := h.snapshotRequest(ctx)
	if body := request.Body; body != nil {
		asked.Name, asked.Comment = value(body.Name), value(body.Comment)
		asked.TTL, asked.Metadata = time.Duration(value(body.TTL))*time.Second, body.Metadata
		asked.Kind = cmp.Or(lifecycle.SnapshotKind(value(body.Kind)), asked.Kind)
	}
	asked.IdempotencyKey = value(request.Params.IdempotencyKey)
	if err := asked.Validate(); err != nil {
		return nil, err
	}
	var timing serverTiming
	timing.add("decode", time.Since(serve.Began(ctx)))
	began := time.Now()
	snapshot, err := store.TakeSnapshot(ctx, request.SandboxID, asked)
	if err != nil {
		return nil, err
	}
	timing.add("durable", time.Since(began))
	serve.LogField(ctx, SnapshotField, snapshot.ID)
	settled, applied := h.waitForSnapshot(ctx, store, request.Params.Prefer, snapshot.ID)
	if applied != nil {
		snapshot = settled
		if snapshot.Status.State == lifecycle.SnapshotReady {
			timing.add("frozen", snapshot.Frozen)
		}
	}
	return gen.TakeSnapshot202JSONResponse{
		Body: toSnapshot(snapshot),
		Headers: gen.TakeSnapshot202ResponseHeaders{
			Location:          "/v1/snapshots/" + snapshot.ID,
			PreferenceApplied: applied,
			ServerTiming:      timing.header(),
		},
	}, nil
}

// waitForSnapshot applies a client's preference to wait, as wait does for sandboxes.
func (h *handlers) waitForSnapshot(
	ctx context.Context, store lifecycle.SnapshotStore, prefer *string, id string,
) (snapshot lifecycle.Snapshot, applied *string) {
	limit := waitOf(value(prefer))
	if limit == 0 {
		return snapshot, nil
	}
	ctx, cancel := listen.UntilDraining(ctx)
	defer cancel()
	snapshot, err := store.AwaitSnapshot(ctx, id, limit)
	if err != nil {
		return lifecycle.Snapshot{}, nil
	}
	return snapshot, new("wait")
}

func (h *handlers) ListSandboxSnapshots(
	ctx context.Context, request gen.ListSandboxSnapshotsRequestObject,
) (gen.ListSandboxSnapshotsResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanRead); err != nil {
		return nil, err
	}
	list, err := h.listSnapshots(ctx, lifecycle.SnapshotFilter{SandboxID: request.SandboxID},
		request.Params.Page, request.Params.PageSize)
	if err != nil {
		return nil, err
	}
	return gen.ListSandboxSnapshots200JSONResponse{SnapshotsJSONResponse: list}, nil
}

func (h *handlers) ListSnapshots(
	ctx context.Context, request gen.ListSnapshotsRequestObject,
) (gen.ListSnapshotsResponseObject, error) {
	filter := lifecycle.SnapshotFilter{SandboxID: value(request.Params.SandboxID), Name: request.Params.Name}
	var err error
	if filter.Metadata, err = lifecycle.ParseMetadataFilter(value(request.Params.Metadata)); err != nil {
		return nil, err
	}
	for _, name := range request.Params.State {
		state, err := parseSnapshotState(name)
		if err != nil {
			return nil, err
		}
		filter.States = append(filter.States, state)
	}
	list, err := h.listSnapshots(ctx, filter, request.Params.Page, request.Params.PageSize)
	if err != nil {
		return nil, err
	}
	return gen.ListSnapshots200JSONResponse{SnapshotsJSONResponse: list}, nil
}

// listSnapshots returns a page of those that match and that the caller may read.
func (h *handlers) listSnapshots(
	ctx context.Context, filter lifecycle.SnapshotFilter, number, size *int,
) (list gen.SnapshotsJSONResponse, err error) {
	store, err := h.snapshotStore()
	if err != nil {
		return list, err
	}
	page := lifecycle.Page{Number: defaultPage, Size: defaultPageSize}
	if number != nil {
		page.Number = *number
	}
	if size != nil {
		page.Size = *size
	}
	filter.Owner = caller(ctx).ListScope()
	listing, err := store.Snapshots(ctx, filter, page)
	if err != nil {
		return list, err
	}
	list.Body = gen.SnapshotList{
		Items:      make([]gen.Snapshot, len(listing.Items)),
		Pagination: toPagination(listing.Total, page),
	}
	for i, snapshot := range listing.Items {
		list.Body.Items[i] = toSnapshot(snapshot)
	}
	return list, nil
}

func (h *handlers) GetSnapshot(
	ctx context.Context, request gen.GetSnapshotRequestObject,
) (gen.GetSnapshotResponseObject, error) {
	snapshot, err := h.authorizedSnapshot(ctx, request.SnapshotID, lifecycle.Principal.CanReadSnapshot)
	if err != nil {
		return nil, err
	}
	settled, applied := h.waitForSnapshot(ctx, h.snapshots, request.Params.Prefer, snapshot.ID)
	if applied != nil {
		snapshot = settled
	}
	return gen.GetSnapshot200JSONResponse{
		Body:    toSnapshot(snapshot),
		Headers: gen.GetSnapshot200ResponseHeaders{PreferenceApplied: applied},
	}, nil
}

func (h *handlers) DeleteSnapshot(
	ctx context.Context, request gen.DeleteSnapshotRequestObject,
) (gen.DeleteSnapshotResponseObject, error) {
	_, err := h.authorizedSnapshot(ctx, request.SnapshotID, lifecycle.Principal.CanUseSnapshot)
	if err != nil {
		return nil, err
	}
	if err := h.snapshots.DeleteSnapshot(ctx, request.SnapshotID); err != nil {
		return nil, err
	}
	return gen.DeleteSnapshot204Response{}, nil
}

func (h *handlers) RollbackSandbox(
	ctx context.Context, request gen.RollbackSandboxRequestObject,
) (gen.RollbackSandboxResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanUse); err != nil {
		return nil, err
	}
	snapshot, err := h.authorizedSnapshot(ctx, request.Body.SnapshotID, lifecycle.Principal.CanUseSnapshot)
	if err != nil {
		return nil, err
	}
	if err := h.snapshots.Rollback(ctx, request.SandboxID, snapshot.ID); err != nil {
		return nil, err
	}
	_, applied := h.wait(ctx, request.Params.Prefer, request.SandboxID)
	return gen.RollbackSandbox202Response{
		Headers: gen.RollbackSandbox202ResponseHeaders{PreferenceApplied: applied},
	}, nil
}

func (h *handlers) ForkSandbox(
	ctx context.Context, request gen.ForkSandboxRequestObject,
) (gen.ForkSandboxResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanUse); err != nil {
		return nil, err
	}
	store, err := h.snapshotStore()
	if err != nil {
		return nil, err
	}
	most, bounds, err := h.limitsOf(ctx)
	if err != nil {
		return nil, err
	}
	principal := caller(ctx)
	asked := lifecycle.ForkRequest{Count: defaultForks, Snapshot: h.snapshotRequest(ctx)}
	if body := request.Body; body != nil {
		asked.Count = cmp.Or(value(body.Count), defaultForks)
		asked.Timeout = time.Duration(value(body.Timeout)) * time.Second
		asked.Env = body.Env
	}
	results, err := store.Fork(ctx, request.SandboxID, asked, lifecycle.CreateOptions{
		Owner: principal.Name, Role: principal.Role, MaxSandboxes: most, Bounds: bounds,
		IdempotencyKey: value(request.Params.IdempotencyKey),
	})
	if err != nil {
		return nil, err
	}
	applied := h.waitForForks(ctx, request.Params.Prefer, results)
	return forkAnswer{ctx, results, applied}, nil
}

// waitForForks applies a client's preference to wait to all of the sandboxes together.
func (h *handlers) waitForForks(ctx context.Context, prefer *string, results []lifecycle.ForkResult) (applied *string) {
	limit := waitOf(value(prefer))
	if limit == 0 {
		return nil
	}
	ctx, cancel := listen.UntilDraining(ctx)
	defer cancel()
	end := time.Now().Add(limit)
	for i := range results {
		if results[i].Err != nil {
			continue
		}
		settled, err := h.backend.AwaitStable(ctx, results[i].Sandbox.ID, max(0, time.Until(end)))
		if err == nil {
			results[i].Sandbox = settled
		}
	}
	return new("wait")
}

// forkAnswer is the response with the sandboxes of a fork. The generated one would change the bytes
// of their extensions.
type forkAnswer struct {
	ctx     context.Context
	results []lifecycle.ForkResult
	applied *string // the preference that was applied
}

var _ gen.ForkSandboxResponseObject = forkAnswer{}

// VisitForkSandboxResponse implements the generated interface.
func (a forkAnswer) VisitForkSandboxResponse(w http.ResponseWriter) error {
	var body bytes.Buffer
	body.WriteString(`{"items":[`)
	for i, result := range a.results {
		if i > 0 {
			body.WriteByte(',')
		}
		if err := a.write(&body, result); err != nil {
			return err
		}
	}
	body.WriteString("]}\n")
	if a.applied != nil {
		w.Header().Set("Preference-Applied", *a.applied)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, err := body.WriteTo(w)
	return err
}

// write writes the item of one result.
func (a forkAnswer) write(body *bytes.Buffer, result lifecycle.ForkResult) error {
	if result.Err == nil {
		body.WriteString(`{"sandbox":`)
		if err := writeSandbox(body, result.Sandbox); err != nil {
			return err
		}
		return body.WriteByte('}')
	}
	seen, known := problem(result.Err)
	if !known {
		zerolog.Ctx(a.ctx).Error().Err(result.Err).Msg("a sandbox of a fork cannot be created")
		seen = serve.Problem{
			Code:    "INTERNAL_ERROR",
			Message: "internal error; see the service's log for request " + serve.RequestID(a.ctx),
		}
	}
	item, err := json.Marshal(gen.Fork{Error: &gen.Error{Code: seen.Code, Message: seen.Message, Detail: seen.Message}})
	body.Write(item)
	return err
}

// checkOrigin holds a request to the rule about image and snapshotId, one of which it has: the
// schema of the contract requires neither. A snapshot must be one that the caller may use. One that
// is gone is left to the backend in a request with an Idempotency-Key: an earlier request with the
// key may have created the sandbox.
func (h *handlers) checkOrigin(ctx context.Context, r gen.CreateSandboxRequest, keyed bool) error {
	switch {
	case r.SnapshotID != nil && r.Image != (gen.Image{}):
		return serve.Invalid("body/image: must be left out when snapshotId is given")
	case r.SnapshotID != nil:
		_, err := h.authorizedSnapshot(ctx, *r.SnapshotID, lifecycle.Principal.CanUseSnapshot)
		var known *lifecycle.Error
		if keyed && errors.As(err, &known) && known.Kind == lifecycle.KindNoSnapshot {
			return nil
		}
		return err
	case r.Image == (gen.Image{}):
		return serve.Invalid("body/image: is required, unless snapshotId is given")
	case r.ResourceLimits == nil:
		return serve.Invalid("body/resourceLimits: is required, unless snapshotId is given")
	}
	return nil
}

func parseSnapshotState(name string) (lifecycle.SnapshotState, error) {
	for _, state := range lifecycle.SnapshotStates() {
		if strings.EqualFold(name, string(state)) {
			return state, nil
		}
	}
	return "", lifecycle.Invalidf("state: %.128q is not a state of snapshots; the states are %v",
		name, lifecycle.SnapshotStates())
}

func toSnapshot(s lifecycle.Snapshot) gen.Snapshot {
	snapshot := gen.Snapshot{
		ID:        s.ID,
		SandboxID: s.SandboxID,
		ParentID:  present(s.ParentID),
		Name:      present(s.Name),
		Comment:   present(s.Comment),
		Metadata:  gen.Metadata(s.Metadata),
		Owner:     present(s.Owner),
		Kind:      gen.SnapshotKind(s.Kind),
		Status: gen.SnapshotStatus{
			State:            gen.SnapshotState(s.Status.State),
			Reason:           present(string(s.Status.Reason)),
			Message:          present(s.Status.Message),
			LastTransitionAt: s.Status.LastTransitionAt,
		},
		Image:         gen.Image{URI: s.Image},
		Size:          s.Size,
		ExclusiveSize: s.ExclusiveSize,
		TreeDigest:    present(s.TreeDigest),
		FreezeMs:      s.Frozen.Seconds() * 1000,
		CreatedAt:     s.CreatedAt,
	}
	if !s.ExpiresAt.IsZero() {
		snapshot.ExpiresAt = &s.ExpiresAt
	}
	return snapshot
}
